"""Rows in the memory of a node's sockets, and other work of its host threads.

All ranks of a node do the same at the same time, so each has its share of bandwidth, caches and
cores. A row comes in lines of 64 bytes; beyond the first, the prefetcher follows, so that what a
row costs is its bytes and a fixed part; rows that come again within an op may still be in the
last-level cache. One core waits for a dozen rows at a time, and moves no more than so many bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np

from perfmodel.arrays import Floats, Ints
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.contract import KERNELS, TIERS, Estimate, Explanation, KernelModel
from perfmodel.cost.tiers import SideBySide, Work
from perfmodel.errors import HardwareError
from perfmodel.hardware import Cluster, Device, Host, Node, device
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS, Dims
from perfmodel.ops.vocabulary.host import PAUSE
from perfmodel.ops.vocabulary.tiers import (
    ACCELERATOR,
    HOST_MEMORY,
    HOST_OPERATORS,
    KEY_BYTES,
    OPERATOR,
    PART,
    PROCESSES,
    QUERY_ORDER,
    WORKING_SETS,
)

_C = coefficients("tiers.host_memory")
COPIES = ("host_gather", "host_scatter")
NAME = f"{HOST_MEMORY}/heuristic"
MIN_POWER = 1e-3
"""Of lookups with which distinct rows grow; where hardly any is new, rows are taken as alike."""


def rank_gb_per_s(machine: Cluster) -> float:
    """One rank's share of its node's DRAM bandwidth, as reading reaches it."""
    node = machine.node
    return _C.stream_frac * node.sockets * node.host.dram_gb_per_s / node.gpus


def random_frac(row_bytes: Floats) -> Floats:
    """Share of the bandwidth that rows at random places get."""
    lines = np.ceil(row_bytes / _C.line_bytes) * _C.line_bytes
    return np.asarray(row_bytes / (lines + _C.row_cost_bytes))


class HostMemory(SideBySide):
    """Rows in the memory of the node's sockets."""

    name = NAME
    formula = "call_us + max(memory_us, cores_us)"

    def source(self, rows: Rows, machine: Cluster) -> str:
        return f"figures of {machine.node.host.name}; assumed: rows at random places"

    def work(self, rows: Rows, machine: Cluster) -> Work:
        node = machine.node
        cores = node.sockets * node.host.cores / node.gpus
        columns = {
            name: np.empty(len(rows)) for name in ("random", "even", "core", "flop", "r", "w")
        }
        for op, index in rows.groups():
            spec, dims, item = OPS[op], rows.dims_of(op, index), rows.item_bytes[index]
            read, written = spec.read_bytes(dims, item), spec.written_bytes(dims, item)
            work = _random_bytes(op, read, written, dims["lookups"] * dims["row_bytes"])
            cached = 0.0 if op == "host_apply" else _cached_bytes(dims, llc_bytes(machine))
            columns["random"][index] = (work - cached) / random_frac(dims["row_bytes"])
            columns["even"][index] = read + written - work
            rate, near = _C.core_gb_per_s, _C.cached_gb_per_s
            if op in COPIES:
                rate = near = _C.copying_gb_per_s
            per_byte = np.maximum(_C.row_us / dims["row_bytes"], 1e-3 / rate)
            columns["core"][index] = (work - cached) * per_byte + cached * 1e-3 / near
            columns["flop"][index] = spec.flop(dims)
            columns["r"][index], columns["w"][index] = read, written
        bandwidth = rank_gb_per_s(machine)
        memory_us = (columns["random"] + columns["even"]) / bandwidth / 1e3
        return Work(
            {"memory": memory_us, "cores": columns["core"] / cores},
            np.full(len(rows), _C.call_us),
            _C.half_factor,
            columns["r"],
            columns["w"],
            columns["flop"],
            start="call_us",
            at_peak_us=(columns["r"] + columns["w"]) / (bandwidth / _C.stream_frac * 1e3),
        )


COUNTER_BYTES = 8.0


def counting_us(lookups: float, machine: Cluster) -> float:
    """What all cores of a node take to read and write a counter at a random place per lookup."""
    each = {"lookups": max(lookups / machine.node.gpus, 1.0), "row_bytes": COUNTER_BYTES}
    rows = Rows.of([{"op": op, **each} for op in COPIES])
    return float(TIERS[HOST_MEMORY].estimate(rows, machine).duration_us.sum())


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
    return known or host.cores * _C.llc_bytes_per_core


def _cached_bytes(dims: Dims, cache_bytes: float) -> Floats:
    """Of rows that come again in one op, those that the cache holds meanwhile.

    Were all rows alike, its share of the distinct ones. Popular ones come again sooner: between two
    working sets distinct bytes grow as a power of lookups; beyond as many lookups as fill the
    cache, as many miss as are new there. Source: Denning, The working set model for program
    behaviour (1968). Of random workloads in batches of 2,048 to 65,536 samples and caches of 2 to
    128 MB, the share that is found is off Che's, row by row, by 0.007 at the 90th percentile of 240
    cases that were not seen and 0.02 at worst (0.07 of those that were).
    """
    looked_up = dims["lookups"] * dims["row_bytes"]
    unique = np.where(dims["unique_rows"] > 0, dims["unique_rows"], dims["lookups"])
    distinct = np.minimum(unique * dims["row_bytes"], looked_up)
    alike = (looked_up - distinct) * np.minimum(cache_bytes / distinct, 1.0)
    every = np.stack([dims[name] for name in WORKING_SETS])
    among = looked_up / float(PART) ** np.arange(len(every))[:, None]
    sets = np.where(every > 0, np.minimum(every, among), among)
    next_ = np.sum(sets > cache_bytes, axis=0).clip(1, len(sets) - 1)
    row = np.arange(len(looked_up))
    larger, smaller = sets[next_ - 1, row], sets[next_, row]
    held = np.minimum(larger, cache_bytes)
    power = (np.log(larger / smaller) / np.log(PART)).clip(MIN_POWER, 1.0)
    filled = np.maximum(among[next_ - 1, row] * (held / larger) ** (1.0 / power), held)
    missed = held + (looked_up - filled) * np.minimum(power * held / filled, 1.0)
    missed = np.where(sets[0] > cache_bytes, missed, sets[0])
    found = np.where(every[0] > 0, looked_up - missed, alike)
    return np.asarray(found.clip(0.0))


def _random_bytes(op: str, read: Floats, written: Floats, rows: Floats) -> Floats:
    """Bytes at random places: rows that are read, and where an op changes them, written too."""
    if op == "host_apply":
        return 2.0 * written
    return np.minimum(rows, read)


TIERS.register(HOST_MEMORY)(HostMemory())


class RowAccelerator(SideBySide):
    """Rows of host memory to the device and back, by the node's accelerator for all its devices at
    once: the slowest of its engines, the memory, the way to the devices, the network and the
    parting of samples. Without an accelerator the host's cores gather into a buffer, and the device
    reads that.

    A row that goes back is read and written. Samples that its input buffer cannot hold are written
    to host memory and read again. On several nodes all but one part of the rows come from, and go
    to, other nodes.
    """

    name = f"{ACCELERATOR}/heuristic"
    formula = "start_us + the longest of the other terms"

    def source(self, rows: Rows, machine: Cluster) -> str:
        part = machine.node.accelerator
        return f"figures of {part.name if part else machine.node.host.name}; assumed: see there"

    def work(self, rows: Rows, machine: Cluster) -> Work:
        """Microseconds per row of the frame, by what takes them; all ranks of a node at a time."""
        node, part = machine.node, machine.node.accelerator
        names = ("start", "engines", "memory", "bus", "network", "keys")
        terms = {name: np.zeros(len(rows)) for name in names}
        for op, index in rows.groups():
            dims = rows.dims_of(op, index)
            size, twice = dims["row_bytes"], 1.0 + (op == "rows_to_host")
            count, delivered = dims["lookups"], dims["lookups"] * size
            moved = count * (size / random_frac(size) + (twice - 1.0) * dims["state_bytes"]) * twice
            bus, memory = node.device.host_gb_per_s, rank_gb_per_s(machine)
            if part is None:
                cores = node.sockets * node.host.cores / node.gpus
                terms["engines"][index] = delivered * twice * 1e-3 / _C.copying_gb_per_s / cores
                terms["start"][index] = _C.call_us
                moved = moved + 2.0 * delivered
            else:
                bus = min(bus, part.pcie_gb_per_s / node.gpus)
                memory = min(memory, (part.memory_gb_per_s or np.inf) / node.gpus)
                side_by_side = part.engines * part.rows_in_flight / node.gpus
                terms["engines"][index] = count * twice * part.memory_latency_us / side_by_side
                terms["keys"][index] = dims["keys"] * node.gpus / part.keys_per_us
                terms["start"][index] = part.start_us + part.memory_latency_us
                waiting = np.maximum(dims["waiting_bytes"] - part.input_bytes / node.gpus, 0.0)
                moved = moved + 2.0 * waiting
            terms["memory"][index] = moved / memory / 1e3
            terms["bus"][index] = delivered / bus / 1e3
            if machine.nodes > 1 and node.nic is not None:
                others = 1.0 - 1.0 / machine.nodes
                wire = node.nic.gb_per_s * (node.nics or 1) / node.gpus
                terms["network"][index] = others * count * (size + KEY_BYTES) / wire / 1e3
                terms["start"][index] += 2.0 * (node.nic.latency_us or 0.0)
        size = rows.dims["lookups"] * rows.dims["row_bytes"]
        return Work(terms, terms.pop("start"), _C.half_factor, size, size, np.zeros(len(rows)))


TIERS.register(ACCELERATOR)(RowAccelerator())


PLAIN_CPU = "generic-cpu"


class HostOperators:
    """PyTorch's operators on a process' share of the node's sockets."""

    def estimate(self, rows: Rows, machine: Cluster) -> Estimate:
        low, duration, high = (np.empty(len(rows)) for _ in range(3))
        for index, cpu in _parts(rows, machine.node):
            estimated = _model().estimate(_on_cpu(rows.take(index)), cpu)
            low[index], duration[index] = estimated.low_us, estimated.duration_us
            high[index] = estimated.high_us
        return Estimate(duration, low, high, estimated.model, estimated.source)

    def explain(self, rows: Rows, machine: Cluster) -> list[Explanation]:
        reasons: dict[int, Explanation] = {}
        for index, cpu in _parts(rows, machine.node):
            told = _model().explain(_on_cpu(rows.take(index)), cpu)
            reasons |= dict(zip(index.tolist(), told, strict=True))
        return [reasons[row] for row in range(len(rows))]


def _model() -> KernelModel:
    return KERNELS[f"cpu/{OPS[OPERATOR].family}/heuristic"]


def _parts(rows: Rows, node: Node) -> Iterator[tuple[Ints, Device]]:
    """Rows by how many processes share the node, and what each has of it."""
    given = np.nan_to_num(rows.dims.get(PROCESSES, np.zeros(len(rows))))
    for processes in np.unique(given).tolist():
        yield np.flatnonzero(given == processes), cpu_share(node, int(processes))


def _on_cpu(rows: Rows) -> Rows:
    return replace(rows, op=(OPERATOR,) * len(rows))


def cpu_share(node: Node, processes: int = 0) -> Device:
    """What one of so many processes (0: one per device) has of the node's sockets, as a CPU."""
    try:
        part = device(node.host.name)
    except HardwareError:
        part = device(PLAIN_CPU)
    share = node.sockets / (processes or node.gpus)
    cores = max(round(node.host.cores * share), 1)
    of_socket = node.host.cores / part.sm_count * share
    return replace(
        part,
        sm_count=cores,
        boost_mhz=max(node.host.boost_mhz, part.base_mhz or 0.0),
        hbm_gb_per_s=node.host.dram_gb_per_s * share,
        l2_bytes=max(round(part.l2_bytes * of_socket), 1),
        llc_bytes=None if part.llc_bytes is None else max(round(part.llc_bytes * of_socket), 1),
        fp32_tflop_per_s=part.fp32_tflop_per_s * of_socket,
    )


TIERS.register(HOST_OPERATORS)(HostOperators())


class QueryOrder(SideBySide):
    """One core of the host puts a batch's queries in order."""

    name = f"{QUERY_ORDER}/heuristic"
    formula = "pairs of lookups x a pair's time / host.single_thread_ratio"

    def source(self, rows: Rows, machine: Cluster) -> str:
        return "timed where this project was made, one core"

    def bound_by(self, work: Work, at: int, slowest: str) -> str:
        return "compute"

    def work(self, rows: Rows, machine: Cluster) -> Work:
        spec, none = OPS["query_order"], np.zeros(len(rows))
        dims = rows.dims_of("query_order", np.arange(len(rows)))
        taken = dims["pairs"] * coefficients("tiers.footprint").pair_us
        taken = taken / machine.node.host.single_thread_ratio
        moved, flop = spec.read_bytes(dims, rows.item_bytes), spec.flop(dims)
        return Work({"pairs": taken}, none, _C.query_order_half_factor, moved, moved, flop)


TIERS.register(QUERY_ORDER)(QueryOrder())


class Pause(SideBySide):
    """A thread's wait for the software's clock: uniform from nothing to a whole period, whose half
    is the mean; the same on any machine."""

    name = PAUSE
    formula = "half the period of the software's clock, the mean of a uniform wait"

    def source(self, rows: Rows, machine: Cluster) -> str:
        return "the software's period"

    def bound_by(self, work: Work, at: int, slowest: str) -> str:
        return "latency"

    def work(self, rows: Rows, machine: Cluster) -> Work:
        wait_us = rows.dims_of("pause", np.arange(len(rows)))["wait_us"]
        none, interval = np.zeros(len(rows)), (_C.low_frac, _C.high_frac)
        return Work({"wait": wait_us}, none, interval, none, none, none, at_peak_us=none)


TIERS.register(PAUSE)(Pause())
