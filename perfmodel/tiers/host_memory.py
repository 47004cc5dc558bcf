"""Rows in the memory of a node's sockets: bytes over what its DDR channels give to random rows.

All ranks of a node do the same at the same time, so each has its share of bandwidth and cores.
A row comes in lines of 64 bytes; beyond the first, the prefetcher follows, so that what a row
costs is its bytes and a fixed part; rows that come again within an op may still be in the
last-level cache. One core waits for a dozen rows at a time, and moves no more
than so many bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from perfmodel.errors import HardwareError
from perfmodel.hardware import Cluster, Host, device
from perfmodel.kernels.model import Estimate, Explanation
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS, Dims, Floats
from perfmodel.ops.vocabulary.host_memory import HOST_MEMORY
from perfmodel.tiers.model import TIERS

STREAM_FRAC = 0.8
"""Of the peak, what reading gives. Source: STREAM on EPYC 7742, Xeon 8280: 75 to 85 %, recalled."""
LINE_BYTES = 64.0
ROW_COST_BYTES = 64.0
"""Assumed: a random row costs as much bandwidth as one line more than it has: opening a page of
DRAM, lines that the prefetcher fetched in vain."""
ROW_US = 0.0083
"""Per row and core, however short the row. Source: this project's 2-core EPYC (Turin), one thread,
`embedding_bag` of PyTorch 2.13 on a table of 1.2 GB, 2026-11-20: 8.1 to 10.0 ns for rows of 16 to
256 bytes (a dozen rows on their way at 100 ns each)."""
CORE_GB_PER_S = 25.0
"""Of rows that are added up, by one core. Source: the same, rows of 256 and 512 bytes: 25 to 30."""
COPYING_GB_PER_S = 4.5
"""Of rows that are copied, by one core. Source: the same, `index_select` into a buffer, rows of 256
to 1,024 bytes: 4.0 to 5.0."""
COPIES = ("host_gather", "host_scatter")
CACHED_GB_PER_S = 45.0
"""Of rows that are in the last-level cache, by one core. Source: `traces/cpu_kernels`, 51,200
uniform lookups of 256 bytes, warm: 13.1 MB in 151 us by two cores."""
LLC_BYTES_PER_CORE = 1.5 * 2**20
"""Assumed where the catalogue has no device of the host's name: as a Xeon of 2017 to 2021."""
CALL_US = 10.0
"""Assumed: a call that wakes a pool of threads and joins them."""
HALF_FACTOR = 1.6
"""Assumed: the 90 % interval reaches so many times up and down. 46 lookups with empty caches that
no figure here saw (`traces/cpu_kernels*`, two cores, tables above 32 MB) are 4 % too fast in the
median, off by 31 % in the median and 57 % at the 90th percentile."""
NAME = f"{HOST_MEMORY}/heuristic"


@dataclass(frozen=True)
class _Work:
    """Per row of a frame, what it moves and what that takes, in microseconds."""

    memory_us: Floats
    cores_us: Floats
    flop: Floats
    read_bytes: Floats
    written_bytes: Floats

    @property
    def duration_us(self) -> Floats:
        return CALL_US + np.maximum(self.memory_us, self.cores_us)


def rank_gb_per_s(machine: Cluster) -> float:
    """One rank's share of its node's DRAM bandwidth, as reading reaches it."""
    node = machine.node
    return STREAM_FRAC * node.sockets * node.host.dram_gb_per_s / node.gpus


def random_frac(row_bytes: Floats) -> Floats:
    """Share of the bandwidth that rows at random places get."""
    lines = np.ceil(row_bytes / LINE_BYTES) * LINE_BYTES
    return np.asarray(row_bytes / (lines + ROW_COST_BYTES))


class HostMemory:
    """See the module."""

    def estimate(self, rows: Rows, machine: Cluster) -> Estimate:
        work = _work(rows, machine)
        taken = work.duration_us
        source = f"figures of {machine.node.host.name}; assumed: rows at random places"
        return Estimate(taken, taken / HALF_FACTOR, taken * HALF_FACTOR, NAME, source)

    def explain(self, rows: Rows, machine: Cluster) -> list[Explanation]:
        work = _work(rows, machine)
        peak = rank_gb_per_s(machine) / STREAM_FRAC * 1e3
        taken = work.duration_us.tolist()
        return [
            Explanation(
                duration_us=us,
                bound_by="memory" if work.memory_us[at] >= work.cores_us[at] else "cores",
                flop=float(work.flop[at]),
                read_bytes=float(work.read_bytes[at]),
                written_bytes=float(work.written_bytes[at]),
                utilisation_frac=float((work.read_bytes[at] + work.written_bytes[at]) / peak / us),
                terms={
                    "memory_us": float(work.memory_us[at]),
                    "cores_us": float(work.cores_us[at]),
                    "call_us": CALL_US,
                },
                formula="call_us + max(memory_us, cores_us)",
            )
            for at, us in enumerate(taken)
        ]


def _work(rows: Rows, machine: Cluster) -> _Work:
    node = machine.node
    cores = node.sockets * node.host.cores / node.gpus
    columns = {name: np.empty(len(rows)) for name in ("random", "even", "core", "flop", "r", "w")}
    for op, index in rows.groups():
        spec, dims, item = OPS[op], rows.dims_of(op, index), rows.item_bytes(index)
        read, written = spec.read_bytes(dims, item), spec.written_bytes(dims, item)
        found = _random_bytes(op, read, written, dims["lookups"] * dims["row_bytes"])
        cached = 0.0 if op == "host_apply" else _cached_bytes(dims, llc_bytes(machine))
        columns["random"][index] = (found - cached) / random_frac(dims["row_bytes"])
        columns["even"][index] = read + written - found
        rate, near = CORE_GB_PER_S, CACHED_GB_PER_S
        if op in COPIES:
            rate = near = COPYING_GB_PER_S
        per_byte = np.maximum(ROW_US / dims["row_bytes"], 1e-3 / rate)
        columns["core"][index] = (found - cached) * per_byte + cached * 1e-3 / near
        columns["flop"][index] = spec.flop(dims)
        columns["r"][index], columns["w"][index] = read, written
    memory_us = (columns["random"] + columns["even"]) / rank_gb_per_s(machine) / 1e3
    cores_us = columns["core"] / cores
    return _Work(memory_us, cores_us, columns["flop"], columns["r"], columns["w"])


def llc_bytes(machine: Cluster) -> float:
    """One rank's share of the last-level caches of its node's sockets."""
    node = machine.node
    return node.sockets * _llc_bytes(node.host) / node.gpus


@cache
def _llc_bytes(host: Host) -> float:
    try:
        known = device(host.name).llc_bytes
    except HardwareError:
        known = None
    return known or host.cores * LLC_BYTES_PER_CORE


def _cached_bytes(dims: Dims, cache_bytes: float) -> Floats:
    """Of rows that come again in one op, those that the cache holds meanwhile."""
    unique = np.where(dims["unique_rows"] > 0, dims["unique_rows"], dims["lookups"])
    again = np.maximum(dims["lookups"] - unique, 0.0) * dims["row_bytes"]
    return np.asarray(again * np.minimum(cache_bytes / (unique * dims["row_bytes"]), 1.0))


def _random_bytes(op: str, read: Floats, written: Floats, rows: Floats) -> Floats:
    """Bytes at random places: rows that are read, and where an op changes them, written too."""
    if op == "host_apply":
        return 2.0 * written
    return np.minimum(rows, read)


TIERS.register(HOST_MEMORY)(HostMemory())
