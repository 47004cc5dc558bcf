"""Figures of matrix products: the tile a library would choose, its waves, and what they move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.hardware import Device
from perfmodel.kernels.gpu import matmul
from perfmodel.kernels.gpu.analysis import Analysis
from perfmodel.kernels.gpu.machine import l2_bytes_per_us, matrix_flop_per_us, stream_bytes_per_us
from perfmodel.kernels.gpu.memory import missed_share, transfer_us
from perfmodel.kernels.gpu.power import sustained_flop_per_us
from perfmodel.kernels.learned.columns import Columns, Tiles, alignment, log
from perfmodel.ops.rows import Ints, Rows
from perfmodel.ops.spec import Floats
from perfmodel.ops.storage import item_bytes

_ANY_TILES = (
    (256.0, 128.0, 1.0),
    (128.0, 256.0, 1.0),
    (128.0, 128.0, 0.95),
    (64.0, 256.0, 0.85),
    (256.0, 64.0, 0.85),
    (64.0, 128.0, 0.8),
    (128.0, 64.0, 0.8),
    (64.0, 64.0, 0.6),
    (32.0, 128.0, 0.5),
    (128.0, 32.0, 0.5),
    (16.0, 128.0, 0.3),
    (128.0, 16.0, 0.3),
)
_SPLITS = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0)
_SPLIT_US = 3.0
_LEAST_DEPTH = 128.0
_CORNER = 8.0
_REPLAYED = "cuda_graph_replay"
_WEIGHT_COPIES = 5.0
"""Graphs that are replayed multiply with several copies of the weights in turn, which together may
lie in the L2. Source: the column `weight_copies` of ai-dynamo/aiconfigurator@095f58a51c, 4 to 6."""
_FEW_BLOCKS_FRAC = 0.5
"""Share of what the L2 delivers that the blocks of few rows ask for (assumed: as scattered reads
do, 0.54 on an A100)."""
_START_CYCLES = 4500.0
"""Clock cycles from a product's launch to its first tile and from its last one to its end."""

_TELLS_FROM = 8.0
"""Compute capability from which tiles come by asynchronous copies, of 16 bytes or fewer at a time
(NVIDIA, PTX ISA, `cp.async`). Of older devices only products are known that were padded before
they were timed (baidu-research/DeepBench, `PAD_KERNELS`), which rows do not say."""

ALIGNED = "align_both"
"""log2 of the elements that the rows of both operands start at multiples of: rows that start within
a sector make every load of a tile take one sector more."""
MOST_ALIGNED = 4.0
FALLING = ("per_sm", "depth")
"""More blocks per multiprocessor and a longer loop over k never lower the share of the peak."""
_KINDS = ("fp8_static", "fp8_block", "nvfp4", "int8", "int8_wo", "int4_wo", "bf16")


_LIBRARY = {"rocm": (1.45, 1.2)}
"""How much longer batched and single products take in a maker's library than trees say that were
taught by others' boards. Source: tables whose devices were left out of the fits, in fp32, mean
logarithms: MI100 0.39 (768 batched) and 0.22 (374 single ones), MI25 and Vega Frontier 0.12 and
0.21 (160 single ones each); of NVIDIA boards left out -0.3 to 0.3, about 0 on average. assumed: 16
bits alike."""


def build(rows: Rows, device: Device, tiles: Tiles) -> Columns:
    """Columns of matrix products of any op and dtype."""
    analysis = matmul.bounds(rows, device)
    b, m, n, k = _sizes(rows)
    peak = matrix_flop_per_us(device, rows.dtype)
    stored = item_bytes(list(rows.dtype))
    rate = peak * device.gemm_peak_frac
    sms = float(device.sm_count)
    tile_rows, tile_columns, splits, compute = np.zeros((4, len(rows)))
    for key, index in _groups(rows, device, tiles):
        chosen = _choose(
            Problem(b[index], m[index], n[index], k[index], rate[index], sms),
            _candidates(key, tiles),
            _may_split(key),
        )
        tile_rows[index], tile_columns[index], splits[index], compute[index] = chosen
    blocks = b * np.ceil(m / tile_rows) * np.ceil(n / tile_columns) * splits
    per_sm = blocks / sms
    depth = np.ceil(k / splits)
    loads = blocks * depth * (tile_rows + tile_columns) * stored / l2_bytes_per_us(device)
    weights_bytes = b * n * k * stored
    others = transfer_us(analysis.read_bytes + analysis.written_bytes - weights_bytes, device)
    slower, slower_moved = _misaligned(analysis, device)
    memory = slower_moved * (_weights_us(weights_bytes, rows, device) + others)
    start = _START_CYCLES / device.boost_mhz
    power = analysis.flop / sustained_flop_per_us(device, rows.dtype, peak)
    quantise = analysis.features["quantise_us"]
    compute = slower * compute
    busy = (compute**_CORNER + memory**_CORNER) ** (1.0 / _CORNER)
    base = start + busy
    limited = start + (busy**_CORNER + power**_CORNER) ** (1.0 / _CORNER)
    figures = {
        "depth": log(depth),
        "per_sm": log(per_sm),
        "wave": log(np.ceil(per_sm) / per_sm),
        "fill": log(blocks / splits * tile_rows * tile_columns / (b * m * n)),
        "tile_rows": np.log2(tile_rows),
        "tile_columns": np.log2(tile_columns),
        "splits": np.log2(splits),
        "memory": log(memory / base),
        "compute": log(compute / base),
        "loads": log(loads / base),
        "blocks_down": log(np.ceil(m / tile_rows)),
        "blocks_across": log(np.ceil(n / tile_columns)),
        "align_n": alignment(n),
        "align_k": alignment(k),
        ALIGNED: np.minimum(alignment(k), alignment(n)).clip(max=MOST_ALIGNED),
        "k_bytes": log(k * stored),
        "is_batched": (b > 1.0).astype(np.float64),
        "has_bias": np.array([float(op == "linear") for op in rows.op]),
        "item_bytes": np.log2(stored),
        "quantise": log(quantise / base),
        "weights_fill": log(weights_bytes / device.l2_bytes),
        "start": log(start / base),
    }
    dtypes = np.array(rows.dtype)
    figures |= {f"is_{kind}": (dtypes == kind).astype(np.float64) for kind in _KINDS}
    sizes = {f"log_{name}": log(each) for name, each in zip("bmnk", (b, m, n, k), strict=True)}
    lift = log(limited / base)
    library = np.log(np.where(b > 1.0, *_LIBRARY.get(device.target, (1.0, 1.0))))
    return Columns(base, analysis.bound_us, quantise, analysis.flop, figures, lift, sizes, library)


def _misaligned(analysis: Analysis, device: Device) -> tuple[Floats, Floats]:
    """Factors of multiplying and of moving, where rows of operands start amid a vector."""
    names = ("misaligned_factor", "by_element_factor")
    tells = device.target != "cuda" or float(device.compute_capability or 0.0) >= _TELLS_FROM
    multiplying, moving = (analysis.features[name] if tells else 1.0 for name in names)
    return np.asarray(multiplying), np.asarray(moving)


def _weights_us(weights_bytes: Floats, rows: Rows, device: Device) -> Floats:
    """From memory, but for replayed graphs whose weights all lie in the L2."""
    replayed = np.array([timing == _REPLAYED for timing in rows.timing], bool)
    missed = np.where(replayed, missed_share(_WEIGHT_COPIES * weights_bytes, device), 1.0)
    from_memory = missed * weights_bytes / stream_bytes_per_us(device)
    from_cache = weights_bytes / (_FEW_BLOCKS_FRAC * l2_bytes_per_us(device))
    return np.asarray(np.where(replayed, np.maximum(from_memory, from_cache), from_memory))


def _sizes(rows: Rows) -> tuple[Floats, Floats, Floats, Floats]:
    sizes = np.ones((4, len(rows)))
    for op, index in rows.groups():
        dims = rows.dims_of(op, index)
        sizes[:, index] = np.stack([dims[name] for name in ("b", "m", "n", "k")])
    return sizes[0], sizes[1], sizes[2], sizes[3]


def tile_key(op: str, dtype: str, device: Device) -> str:
    """Under which tiles are kept: ops and dtypes have libraries of their own, per generation."""
    return f"{op}/{dtype}/{device.target}/{device.compute_capability or 0}"


def _groups(rows: Rows, device: Device, tiles: Tiles) -> list[tuple[str, Ints]]:
    found: dict[str, list[int]] = {}
    for row, (op, dtype) in enumerate(zip(rows.op, rows.dtype, strict=True)):
        found.setdefault(tile_key(op, dtype, device), []).append(row)
    return [(key, np.array(index, np.int64)) for key, index in found.items()]


def _candidates(key: str, tiles: Tiles) -> Sequence[Sequence[float]]:
    """Of the nearest generation for the same op, dtype and target; else any tile."""
    *same, capability = key.split("/")
    near = [
        (abs(float(each.split("/")[-1]) - float(capability)), each)
        for each in tiles
        if each.split("/")[:-1] == same
    ]
    return tiles[min(near)[1]] if near else _ANY_TILES


def _may_split(key: str) -> bool:
    return not key.startswith("bmm/")


@dataclass(frozen=True)
class Problem:
    """Sizes per row, the rate of all multiprocessors together, and their number."""

    b: Floats
    m: Floats
    n: Floats
    k: Floats
    rate_flop_per_us: Floats
    sms: float


def _choose(
    problem: Problem, candidates: Sequence[Sequence[float]], may_split: bool
) -> NDArray[np.float64]:
    """`[4, n]`: rows and columns of the fastest tile, its splits of k, its time at the peak."""
    allowed = _SPLITS if may_split else (1.0,)
    rows, columns, frac, splits = np.array(
        [(*each, own) for each in candidates for own in allowed]
    ).T[:, :, None]
    blocks = problem.b * np.ceil(problem.m / rows) * np.ceil(problem.n / columns)
    step = 2.0 * rows * columns * problem.sms / problem.rate_flop_per_us
    compute = np.ceil(blocks * splits / problem.sms) * np.ceil(problem.k / splits) * step
    is_split = splits > 1.0
    time = compute / frac + np.where(is_split, _SPLIT_US, 0.0)
    time = np.where(is_split & (problem.k < splits * _LEAST_DEPTH), np.inf, time)
    best = time.argmin(axis=0)
    at = np.arange(len(best))
    return np.stack([rows[best, 0], columns[best, 0], splits[best, 0], compute[best, at]])
