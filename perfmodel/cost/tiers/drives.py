"""Rows on the drives of a node: what a drive takes for random reads, and reads that queue.

A drive of latency t0 and at most X reads per second works on n = X t0 of them at a time. A read
that comes while Q - 1 others are there waits for the rest of those on its own channel, half a read
each: L = t0 + (Q - 1) / 2X, and never less than Q / X.

All ranks of a node read at the same time and spread evenly over its drives.

Rows in the memory of network adapters: the slowest of an adapter's memory, engines or cores,
descriptors and bus decides. They work as a pipeline, row after row. Arm cores (a DPU) fetch rows
with a few misses each in flight; engines of an FPGA start so many rows per microsecond. Every row
that is read or written takes a descriptor.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from perfmodel.base.arrays import Floats
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.gpu.analysis import Group
from perfmodel.cost.tiers import Work, tier
from perfmodel.errors import HardwareError, ModelError
from perfmodel.hardware import Cluster, Nic
from perfmodel.hardware.parts import Storage
from perfmodel.ops.vocabulary.embedding import NIC, STORAGE

BLOCK_BYTES = 4096  # what read rates of drives are given for


def moved_bytes(drive: Storage, row_bytes: ArrayLike) -> Floats:
    """Bytes that a read of one row moves: whole sectors, as few as can be."""
    sector = drive.sector_bytes or BLOCK_BYTES
    return np.asarray(np.ceil(np.asarray(row_bytes, np.float64) / sector) * sector)


def read_amplification(drive: Storage, row_bytes: ArrayLike) -> Floats:
    """Bytes moved over bytes wanted, 1 or more."""
    return np.asarray(moved_bytes(drive, row_bytes) / np.asarray(row_bytes, np.float64))


def reads_per_s(drive: Storage, row_bytes: ArrayLike) -> Floats:
    """The most random reads of rows per second: what the drive can start, and its bandwidth.

    Between one sector and 4 KiB a read takes a fixed part and one in proportion to its bytes.
    """
    moved = moved_bytes(drive, row_bytes)
    block_s = 1 / drive.read_iops
    least_s = 1 / drive.small_read_iops if drive.small_read_iops else block_s
    sector = drive.sector_bytes or BLOCK_BYTES
    share = np.clip((moved - sector) / max(BLOCK_BYTES - sector, 1), 0.0, 1.0)
    each_s = least_s + (block_s - least_s) * share
    return np.asarray(1 / np.maximum(each_s, moved / (drive.read_gb_per_s * 1e9)))


def read_latency_us(drive: Storage, in_flight: ArrayLike, row_bytes: ArrayLike) -> Floats:
    """Latency of a read while `in_flight`, including it, are there all the time; `HardwareError`
    where that of a read alone is unknown."""
    if drive.read_latency_us is None:
        raise HardwareError(f"{drive.name}: read_latency_us is missing: expected microseconds")
    depth = np.maximum(np.asarray(in_flight, np.float64), 1.0)
    each_us = 1e6 / reads_per_s(drive, row_bytes)
    queued_us = drive.read_latency_us + (depth - 1) * each_us / 2
    return np.asarray(np.maximum(queued_us, depth * each_us))


def read_iops(drive: Storage, in_flight: ArrayLike, row_bytes: ArrayLike) -> Floats:
    """Reads per second with so many in flight."""
    depth = np.maximum(np.asarray(in_flight, np.float64), 1.0)
    return np.asarray(depth / read_latency_us(drive, depth, row_bytes) * 1e6)


def read_us(drive: Storage, rows: ArrayLike, row_bytes: ArrayLike, in_flight: ArrayLike) -> Floats:
    """A batch of `rows` reads, at most `in_flight` at a time: a first one's latency, and then as
    many as complete while the queue is full."""
    count = np.asarray(rows, np.float64)
    depth = np.minimum(np.maximum(count, 1.0), np.maximum(np.asarray(in_flight, np.float64), 1.0))
    first = read_latency_us(drive, depth, row_bytes)
    return np.asarray(np.where(count > 0, first * np.maximum(count, depth) / depth, 0.0))


def write_us(drive: Storage, rows: ArrayLike, row_bytes: ArrayLike, page_rows: ArrayLike) -> Floats:
    """Rows written at the drive's bandwidth, whole sectors of `page_rows` rows each."""
    together = np.maximum(np.asarray(page_rows, np.float64), 1.0)
    each = moved_bytes(drive, np.asarray(row_bytes, np.float64) * together) / together
    rate = drive.write_gb_per_s or drive.read_gb_per_s
    return np.asarray(np.asarray(rows, np.float64) * each / rate / 1e3)


_C, _HOST = coefficients("tiers.drives"), coefficients("tiers.host_memory")


def _drive(machine: Cluster) -> Storage:
    if machine.node.storage is None:
        raise ModelError(
            f"{machine.name}: tables are on drives, but the node has no storage: add it to its file"
        )
    return machine.node.storage


@tier(
    STORAGE,
    "start_us + max(drive_us, core_us); drive_us by the drive's queue, "
    "t0 + (Q - 1) / 2X of a read with Q in flight",
    lambda _, machine: f"figures of {machine.node.drives or 1} {_drive(machine).name}",
)
def _work(group: Group, machine: Cluster) -> Work:
    """The least that a drive takes is what the bytes, or the reads, take at its most."""
    node, dims, drive = machine.node, group.dims, _drive(machine)
    size = dims["row_bytes"]
    shared = np.where(dims["sharers"] > 0.0, dims["sharers"], node.gpus) / (node.drives or 1)
    each = dims["rows"] * shared
    if group.op == "storage_read":
        asked = np.where(dims["in_flight"] > 0, dims["in_flight"], dims["rows"])
        drive_us = read_us(drive, each, size, asked * shared)
        least_us = each / reads_per_s(drive, size) * 1e6
    else:
        drive_us = least_us = write_us(drive, each, size, dims["page_rows"])
    cores = max(node.sockets * node.host.cores / node.gpus, 1.0)
    core_us = dims["rows"] * float(_C.row_us) / cores
    return Work({"drive": drive_us, "core": core_us}, _HOST.call_us, least_us)


_ENGINE, _COPIED = coefficients("tiers.engine"), coefficients("gpu.streaming")


def adapter(machine: Cluster) -> Nic:
    """The nodes' adapter; `ModelError` where it has no memory for rows."""
    nic = machine.node.nic
    if nic is None or not nic.memory_gb_per_s or not nic.memory_bytes:
        raise ModelError(
            f"{machine.node.name}: its network adapter ({nic.name if nic else 'none'}) has no "
            "memory that could hold rows: use one such as bluefield-3 or u280"
        )
    return nic


@tier(
    NIC,
    "start_us + the longest of the other terms",
    lambda _, machine: f"figures of {adapter(machine).name}; assumed: rows at random places",
)
def _adapter_work(group: Group, machine: Cluster) -> Work:
    nic, dims, node = adapter(machine), group.dims, machine.node
    share = (node.nics or 1) / node.gpus  # of its node's adapters
    assert nic.memory_gb_per_s is not None
    padded = np.ceil(dims["row_bytes"] / _HOST.line_bytes) * _HOST.line_bytes
    moved = group.moved_bytes + dims["lookups"] * (padded - dims["row_bytes"])
    rows = dims.get("probes", dims["lookups"]) + dims["lookups"]
    bus = node.device.host_gb_per_s
    bus = min(nic.pcie_gb_per_s or bus, bus) * 1e3
    terms = {
        "memory": moved / (_ENGINE.memory_frac * nic.memory_gb_per_s * share * 1e3),
        "bus": dims["delivered_bytes"] / (_COPIED.achieved_frac * bus),
    }
    cores = (nic.cores or 0) * share
    if nic.engine_rows_per_us:
        terms["engines"] = rows / (nic.engine_rows_per_us * share)
    elif cores:
        terms["cores"] = rows * _ENGINE.row_us / cores
        terms["adders"] = group.flop / (_ENGINE.core_adds_per_us * cores)
    if descriptors_per_us := nic.descriptors_per_us or nic.messages_per_us:
        terms["descriptors"] = dims["lookups"] / (descriptors_per_us * share)
    return Work(terms, _ENGINE.start_us)
