"""Rows in the memory of a node's sockets, and other work of its host threads.

All ranks of a node do the same at the same time, so each has its share of bandwidth, caches and
cores. A row comes in lines of 64 bytes; beyond the first, the prefetcher follows, so that what a
row costs is its bytes and a fixed part; rows that come again within an op may still be in the
last-level cache. One core waits for a dozen rows at a time, and moves no more than so many bytes.

Lookups by a GPU's kernels read rows of host memory over the bus, request by request. The L2 does
not keep them, the L1 of a multiprocessor does. The device waits for so many requests at a time;
short rows make short requests, which then bound the rate below the bus's. The bus carries both ways
at once: what is written shares its way with the requests of what is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from perfmodel.base.arrays import Floats, Ints
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.contract import KERNELS, TIERS, Estimate, Explanation
from perfmodel.cost.gpu.analysis import Group
from perfmodel.cost.gpu.embedding import missed_lookups
from perfmodel.cost.gpu.rates import LINE_BYTES, SECTOR_BYTES, is_older, stream_bytes_per_us
from perfmodel.cost.tiers import Tier, Work, tier
from perfmodel.errors import HardwareError
from perfmodel.hardware import Cluster, Device, Host, Node, device
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS, Dims
from perfmodel.ops.vocabulary.embedding import (
    ACCELERATOR,
    HOST_BUS,
    HOST_MEMORY,
    HOST_OPERATORS,
    KEY_BYTES,
    OPERATOR,
    PART,
    PROCESSES,
    WORKING_SETS,
    stored_row_bytes,
)
from perfmodel.ops.vocabulary.streaming import PAUSE

_C, _BUS = coefficients("tiers.host_memory"), coefficients("tiers.host_bus")
_INTERVAL = coefficients("tiers.interval")
COPIES = ("host_gather", "host_scatter")
MIN_POWER = 1e-3
"""Of lookups with which distinct rows grow; where hardly any is new, rows are taken as alike."""


def rank_gb_per_s(machine: Cluster) -> float:
    """One rank's share of its node's DRAM bandwidth, as reading reaches it."""
    node = machine.node
    return _C.stream_frac * node.sockets * node.host.dram_gb_per_s / node.gpus


def random_frac(row_bytes: Floats) -> Floats:
    """Share of the bandwidth that rows at random places get."""
    lines = np.ceil(row_bytes / _C.line_bytes) * _C.line_bytes
    return np.asarray(row_bytes / (lines + _C.line_bytes))


@tier(
    HOST_MEMORY,
    "start_us + max(memory_us, cores_us)",
    lambda _, machine: f"figures of {machine.node.host.name}; assumed: rows at random places",
)
def _memory_work(group: Group, machine: Cluster) -> Work:
    """Bytes at random places: rows that are read, and where an op changes them, written."""
    dims, node = group.dims, machine.node
    scattered = np.minimum(dims["lookups"] * dims["row_bytes"], group.read_bytes)
    cached: Floats | float = 0.0
    if group.op == "host_apply":
        scattered = 2.0 * group.written_bytes
    else:
        cached = _cached_bytes(dims, float(cpu_share(node).llc_bytes or 0))  # of one rank
    rate, near = _C.core_gb_per_s, _C.cached_gb_per_s
    if group.op in COPIES:
        rate = near = _C.copying_gb_per_s
    per_byte = np.maximum(_C.row_us / dims["row_bytes"], 1e-3 / rate)
    core_us = (scattered - cached) * per_byte + cached * 1e-3 / near
    moved = (scattered - cached) / random_frac(dims["row_bytes"])
    moved = moved + group.moved_bytes - scattered
    bandwidth = rank_gb_per_s(machine) * 1e3
    cores = node.sockets * node.host.cores / node.gpus
    terms = {"memory": moved / bandwidth, "cores": core_us / cores}
    return Work(terms, _C.call_us, group.moved_bytes * _C.stream_frac / bandwidth)


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


def bus_read_gb_per_s(row_bytes: Floats, device: Device) -> Floats:
    """What a device reads over its bus of rows of so many bytes at random places."""
    peak, sectors = device.host_gb_per_s, _in_sectors(row_bytes)
    tags = _BUS.tags if peak <= _BUS.short_tags_gb_per_s else _BUS.long_tags
    waiting = tags * np.minimum(sectors, LINE_BYTES) / _BUS.request_us * 1e-3
    return np.asarray(np.minimum(_BUS.read_frac * peak, waiting) * row_bytes / sectors)


def _in_sectors(row_bytes: Floats) -> Floats:
    return np.asarray(np.ceil(row_bytes / SECTOR_BYTES) * SECTOR_BYTES)


@tier(
    HOST_BUS,
    "start_us + max(bus_us, memory_us)",
    lambda _, machine: f"figures of {machine.node.device.name}: bus; assumed: requests in flight",
)
def _bus_work(group: Group, machine: Cluster) -> Work:
    """Lookups by a GPU's kernels: rows over the bus, all else that moves in device memory.

    Of lookups that a multiprocessor works on, popular rows come again while its L1 has them;
    backward finds equal rows by a sort, and changes each once. A kernel timed by itself has the
    host's memory alone.
    """
    device, dims = machine.node.device, group.dims
    row = stored_row_bytes(dims, group.item_bytes)
    looked_up, written = dims["lookups"] * row, np.zeros(len(group.index))
    if group.direction == "bwd":
        distinct = np.where(dims["unique_rows"] > 0, dims["unique_rows"], _distinct(dims, 1.0))
        read = written = distinct * (row + dims["state_bytes"])
        others = group.moved_bytes - 2.0 * group.written_bytes
    else:
        read = looked_up - _bytes_in_l1(dims, row, device)
        others = group.moved_bytes - looked_up
    asked = read / np.minimum(_in_sectors(row), LINE_BYTES) * _BUS.request_header_bytes
    ranks = np.where(group.in_program, 1.0, machine.node.gpus)
    dram = random_frac(row) * rank_gb_per_s(machine) * ranks
    writing = np.minimum(_BUS.write_frac * device.host_gb_per_s, dram)
    ways = [
        read / np.minimum(bus_read_gb_per_s(row, device), dram),
        np.where(written > 0.0, written + asked, 0.0) / writing,
        (read + written) / dram,
    ]
    terms = {
        "bus": np.maximum.reduce(ways) / 1e3,
        "memory": others / stream_bytes_per_us(device),
    }
    at_peak_us = (read + written) / (device.host_gb_per_s * 1e3)
    return Work(terms, device.kernel_floor_us, at_peak_us)


def _distinct(dims: Dims, part: float) -> Floats:
    """Rows among one in `part` of the lookups of all tables, by their skew."""
    tables, lookups = dims["tables"], dims["lookups"] / dims["tables"] / part
    rows = np.maximum(dims["hash_size"], 1.0)
    return tables * missed_lookups(lookups, rows, np.zeros_like(rows), dims["zipf_alpha"])[1]


def _bytes_in_l1(dims: Dims, row: Floats, device: Device) -> Floats:
    """Of rows that multiprocessors look up, each its part of one table after the other, those that
    it still has in its L1, which is one memory with the shared one (from Volta on)."""
    if is_older(device, "7.0") or device.target != "cuda" or device.shared_bytes_per_sm is None:
        return np.zeros_like(row)
    runs = dims["tables"] * device.sm_count
    sets = {
        name: _distinct(dims, device.sm_count * float(PART) ** at) / dims["tables"] * row
        for at, name in enumerate(WORKING_SETS)
    }
    own = {"lookups": dims["lookups"] / runs, "row_bytes": row, "unique_rows": dims["unique_rows"]}
    return runs * _cached_bytes({**own, **sets}, float(device.shared_bytes_per_sm))


@tier(
    ACCELERATOR,
    "start_us + the longest of the other terms",
    lambda _, on: f"figures of {(on.node.accelerator or on.node.host).name}; assumed: see there",
)
def _accelerator_work(group: Group, machine: Cluster) -> Work:
    """Rows of host memory to the device and back, by the node's accelerator for all its devices at
    once: the slowest of its engines, the memory, the way to the devices, the network and the
    parting of samples. Without an accelerator the host's cores gather into a buffer, and the device
    reads that.

    A row that goes back is read and written. Samples that its input buffer cannot hold are written
    to host memory and read again. On several nodes all but one part of the rows come from, and go
    to, other nodes.
    """
    node, part, dims = machine.node, machine.node.accelerator, group.dims
    size, count, twice = dims["row_bytes"], dims["lookups"], 1.0 + (group.op == "rows_to_host")
    delivered = count * size
    moved = count * (size / random_frac(size) + (twice - 1.0) * dims["state_bytes"]) * twice
    bus, memory = node.device.host_gb_per_s, rank_gb_per_s(machine)
    terms: dict[str, Floats | float]
    if part is None:
        cores = node.sockets * node.host.cores / node.gpus
        terms = {"engines": delivered * twice * 1e-3 / _C.copying_gb_per_s / cores, "keys": 0.0}
        start_us, moved = _C.call_us, moved + 2.0 * delivered
    else:
        bus = min(bus, part.pcie_gb_per_s / node.gpus)
        memory = min(memory, (part.memory_gb_per_s or np.inf) / node.gpus)
        side_by_side = part.engines * part.rows_in_flight / node.gpus
        terms = {
            "engines": count * twice * part.memory_latency_us / side_by_side,
            "keys": dims["keys"] * node.gpus / part.keys_per_us,
        }
        start_us = part.start_us + part.memory_latency_us
        waiting = dims["waiting_bytes"] - part.input_bytes / node.gpus
        moved = moved + 2.0 * np.maximum(waiting, 0.0)
    terms |= {"memory": moved / memory / 1e3, "bus": delivered / bus / 1e3, "network": 0.0}
    if machine.nodes > 1 and node.nic is not None:
        others = 1.0 - 1.0 / machine.nodes
        wire = node.nic.gb_per_s * (node.nics or 1) / node.gpus
        terms["network"] = others * count * (size + KEY_BYTES) / wire / 1e3
        start_us += 2.0 * (node.nic.latency_us or 0.0)
    return Work(terms, start_us)


class HostOperators:
    """PyTorch's operators on a process' share of the node's sockets."""

    def estimate(self, rows: Rows, machine: Cluster) -> Estimate:
        ends = np.empty((3, len(rows)))
        for index, own, cpu in _parts(rows, machine.node):
            found = _MODEL.estimate(own, cpu)
            ends[:, index] = found.duration_us, found.low_us, found.high_us
        return Estimate(ends[0], ends[1], ends[2], found.model, found.source)

    def explain(self, rows: Rows, machine: Cluster) -> list[Explanation]:
        reasons: dict[int, Explanation] = {}
        for index, own, cpu in _parts(rows, machine.node):
            reasons |= dict(zip(index.tolist(), _MODEL.explain(own, cpu), strict=True))
        return [reasons[row] for row in range(len(rows))]


_MODEL = KERNELS[f"cpu/{OPS[OPERATOR].family}/heuristic"]


def _parts(rows: Rows, node: Node) -> Iterator[tuple[Ints, Rows, Device]]:
    """Rows by how many processes share the node, as the operator's, and what each has of it."""
    given = np.nan_to_num(rows.dims.get(PROCESSES, np.zeros(len(rows))))
    for processes in np.unique(given).tolist():
        index = np.flatnonzero(given == processes)
        own = replace(rows.take(index), op=(OPERATOR,) * len(index))
        yield index, own, cpu_share(node, int(processes))


def cpu_share(node: Node, processes: int = 0) -> Device:
    """What one of so many processes (0: one per device) has of the node's sockets, as a CPU."""
    part, share = cpu_of(node.host), node.sockets / (processes or node.gpus)
    return replace(
        part,
        sm_count=max(round(node.host.cores * share), 1),
        boost_mhz=max(node.host.boost_mhz, part.base_mhz or 0.0),
        hbm_gb_per_s=node.host.dram_gb_per_s * share,
        l2_bytes=max(round(part.l2_bytes * share), 1),
        llc_bytes=None if part.llc_bytes is None else max(round(part.llc_bytes * share), 1),
        fp32_tflop_per_s=part.fp32_tflop_per_s * share,
    )


def cpu_of(host: Host) -> Device:
    """One socket of `host` as a device: the catalogue's of that name, else a generic one with the
    host's cores, clock and memory bandwidth."""
    try:
        return device(host.name)
    except HardwareError:
        plain = device("generic-cpu")
    cores = host.cores / plain.sm_count
    speed = cores * host.boost_mhz / plain.boost_mhz
    return replace(
        plain,
        name=host.name,
        usual_host=None,
        sm_count=host.cores,
        boost_mhz=host.boost_mhz,
        tdp_w=host.tdp_w or plain.tdp_w,
        hbm_gb_per_s=host.dram_gb_per_s,
        l2_bytes=int(plain.l2_bytes * cores),
        llc_bytes=int((plain.llc_bytes or 0) * cores) or None,
        fp32_tflop_per_s=plain.fp32_tflop_per_s * speed,
        price_usd=host.price_usd,
    )


TIERS.register(HOST_OPERATORS)(HostOperators())


# A wait for the software's clock: uniform from nothing to a whole period, whose half is the
# mean; the same on any machine.
TIERS.register(PAUSE)(
    Tier(
        PAUSE,
        "half the period of the software's clock, the mean of a uniform wait",
        lambda group, _: Work({"wait": group.dims["wait_us"]}, at_peak_us=0.0),
        lambda *_: "the software's period",
        (1.0 - _INTERVAL.wait_frac, 1.0 + _INTERVAL.wait_frac),
    )
)
