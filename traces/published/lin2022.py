"""The lookups of Lin et al. (2022) by their formulas as published: DRAM, the L2's hits, SGD.

Kept as they are, jumps at the knees and all, to compare with. Source: Lin et al., "Building a
Performance Model for Deep Learning Recommendation Model Training on GPUs", HiPC 2022, and its
repository owensgroup/ml_perf_model@5b2522a (constants, and the L2 curve of its history).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from benchmarks.published.designs import Study
from perfmodel.base.arrays import Floats


@dataclass(frozen=True)
class Curve:
    """Bandwidth over size: constant time up to 2^`knee`, a sigmoid, 2^`saturation` and on flat.

    `sigmoid` is (height, middle, steepness, base) of log10(GB/s) over log2(bytes).
    """

    knee: float
    saturation: float
    peak_gb_per_s: float
    overhead_us: float
    sigmoid: tuple[float, float, float, float]

    def gb_per_s(self, size_bytes: Floats) -> Floats:
        """Bandwidth at each size."""
        size = np.asarray(size_bytes, np.float64)
        x = np.log2(size)
        small = size / self.overhead_us / 1e3
        between = 10.0 ** self._log10(x)
        return np.where(
            x <= self.knee, small, np.where(x <= self.saturation, between, self.peak_gb_per_s)
        )

    def time_us(self, size_bytes: Floats) -> Floats:
        """Time at each size; beyond saturation the overhead comes on top."""
        size = np.asarray(size_bytes, np.float64)
        x = np.log2(size)
        moved = size / self.gb_per_s(size) / 1e3
        time = np.where(x <= self.knee, self.overhead_us, moved)
        return np.where(x > self.saturation, moved + self.overhead_us, time)

    def _log10(self, x: Floats) -> Floats:
        height, middle, steepness, base = self.sigmoid
        return height / (1.0 + np.exp(-steepness * (x - middle))) + base


L2_CURVE = Curve(0.0, 40.0, 2289.23, 1.0, (0.80007547, 25.35998915, 0.72015376, 2.56152161))
"""Fitted on V100 lookups; the other GPUs reuse it."""


@dataclass(frozen=True)
class Gpu:
    """One GPU's constants."""

    dram: Curve
    sms: int
    l2_bytes: int
    shared_bytes: int
    dram_gb_per_s: float
    l2_gb_per_s: float
    gflop_per_s: float


V100 = Gpu(
    Curve(16, 30, 816.953003, 4.83328223, (1.9472268, 19.81699009, 0.55556443, 0.95523816)),
    sms=80,
    l2_bytes=6_291_456,
    shared_bytes=65_536,
    dram_gb_per_s=816.953,
    l2_gb_per_s=2847.457,
    gflop_per_s=15441.524,
)
A100 = Gpu(
    Curve(14, 29, 1391.103638, 6.450239, (2.20955621, 20.35203082, 0.62528837, 0.93242722)),
    sms=108,
    l2_bytes=41_943_040,
    shared_bytes=163_840,
    dram_gb_per_s=1391.103,
    l2_gb_per_s=2270.919,
    gflop_per_s=15026.615,
)
FBGEMM_WARPS = 45.0
"""Warps in flight per multiprocessor in FBGEMM's forward kernel: 0.71 of 64."""


@dataclass(frozen=True)
class Lookup:
    """`tables` equal tables of `rows` rows of `dim` fp32 values, `pooling` lookups per bag."""

    batch: int
    rows: int
    tables: int
    pooling: int
    dim: int

    @property
    def row_bytes(self) -> int:
        """A row in whole sectors of 32 bytes."""
        return _sectors(4 * self.dim)

    @property
    def index_bytes(self) -> int:
        """A bag's indices in whole sectors."""
        return _sectors(4 * self.pooling)


def cached_rows(lookup: Lookup, gpu: Gpu, warps: float = FBGEMM_WARPS) -> int:
    """Rows of one table that the L2 holds while `warps` bags per multiprocessor are in flight."""
    tables = np.ceil(gpu.sms * warps / lookup.batch)
    held = int(0.9 * gpu.l2_bytes / tables / 4 / lookup.dim)
    return min(held, lookup.rows, lookup.batch * lookup.pooling)


def forward_us(lookup: Lookup, gpu: Gpu, warps: float = FBGEMM_WARPS) -> float:
    """Uniform lookups with the L2's hits."""
    lookups = lookup.batch * lookup.pooling
    held = cached_rows(lookup, gpu, warps)
    distinct = lookup.rows * (1.0 - (1.0 - 1.0 / lookup.rows) ** lookups)
    missed = distinct
    if distinct > held:
        missed = held + (lookups - held) * (lookup.rows - held) / lookup.rows
    hit = 1.0 - missed / lookups
    bag = lookup.index_bytes + 96 + lookup.row_bytes
    rows_bytes = lookup.batch * lookup.pooling * lookup.row_bytes
    dram = lookup.tables * (lookup.batch * bag + (1.0 - hit) * rows_bytes)
    l2 = lookup.tables * hit * rows_bytes
    cache_us = float(L2_CURVE.time_us(np.array(l2, np.float64))) if l2 > 0 else 0.0
    return max(float(gpu.dram.time_us(np.array(dram, np.float64))), cache_us) * _narrow(lookup.dim)


def backward_us(lookup: Lookup, gpu: Gpu, warps: float | None = None) -> float:
    """SGD with the L2's hits, at constant peaks; `warps` None is FBGEMM's kernel."""
    if warps is None:
        warps = float(_fbgemm_backward_warps(lookup.dim, gpu))
    tables = int(np.ceil(gpu.sms * warps / lookup.batch))
    held_bytes = min(gpu.l2_bytes // tables, 4 * lookup.rows * lookup.dim)
    held = held_bytes // 4 // lookup.dim
    hit = 1.0
    for each in range(lookup.pooling):
        hit *= (held - each) / (lookup.rows - each)
    rows_bytes = 2 * lookup.pooling * lookup.row_bytes * lookup.batch - held_bytes
    l2 = lookup.tables * (96 * lookup.batch + hit * rows_bytes)
    bag = lookup.index_bytes + lookup.row_bytes
    dram = lookup.tables * (lookup.batch * bag + (1.0 - hit) * rows_bytes + held_bytes)
    return max(dram / gpu.dram_gb_per_s / 1e3, l2 / gpu.l2_gb_per_s / 1e3, _flop_us(lookup, gpu))


def _flop_us(lookup: Lookup, gpu: Gpu) -> float:
    flop = lookup.batch * lookup.tables * lookup.pooling * 4 * (lookup.dim // 4)
    return flop / gpu.gflop_per_s / 1e3


def _fbgemm_backward_warps(dim: int, gpu: Gpu) -> int:
    shared = int(gpu.shared_bytes * 2 / 3 / 16) * 16
    warps = 32
    while 512 * warps * -(-dim // 128) >= shared:
        warps //= 2
    return warps


def _narrow(dim: int) -> float:
    return 1.0 if dim > 64 else 1.1 if dim > 32 else 1.55


def _sectors(size_bytes: int) -> int:
    return 32 * -(-size_bytes // 32)


LOOKUP = Lookup(batch=2048, rows=1_000_000, tables=8, pooling=100, dim=64)


def lookup_us(study: Study, formula: Literal["forward", "forward-naive", "backward"]) -> float:
    """Time of one direction on the paper's V100."""
    gpu = V100
    if formula == "forward":
        return float(forward_us(LOOKUP, gpu, FBGEMM_WARPS))
    if formula == "backward":
        return float(backward_us(LOOKUP, gpu, None))
    naive = 96 + LOOKUP.index_bytes + (LOOKUP.pooling + 1) * LOOKUP.row_bytes
    return float(gpu.dram.time_us(np.array(LOOKUP.batch * LOOKUP.tables * naive)))
