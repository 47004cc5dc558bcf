"""Rows in the memory of network adapters: what reading them takes.

The slowest of an adapter's memory, engines or cores, descriptors and bus decides.

They work as a pipeline, row after row. Arm cores (a DPU) fetch rows with a few misses each in
flight; engines of an FPGA start so many rows per microsecond. Every row that is read or written
takes a descriptor.
"""

from __future__ import annotations

import numpy as np

from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.gpu.analysis import Group
from perfmodel.cost.tiers import Work, register
from perfmodel.errors import ModelError
from perfmodel.hardware import Cluster, Nic
from perfmodel.ops.vocabulary.embedding import NIC

_C = coefficients("tiers.engine")


def adapter(machine: Cluster) -> Nic:
    """The nodes' adapter; `ModelError` where it has no memory for rows."""
    nic = machine.node.nic
    if nic is None or not nic.memory_gb_per_s or not nic.memory_bytes:
        raise ModelError(
            f"{machine.node.name}: its network adapter ({nic.name if nic else 'none'}) has no "
            "memory that could hold rows: use one such as bluefield-3 or u280"
        )
    return nic


def _work(group: Group, machine: Cluster) -> Work:
    nic, dims, node = adapter(machine), group.dims, machine.node
    share = (node.nics or 1) / node.gpus  # of its node's adapters
    assert nic.memory_gb_per_s is not None
    padded = np.ceil(dims["row_bytes"] / _C.burst_bytes) * _C.burst_bytes
    moved = group.moved_bytes + dims["lookups"] * (padded - dims["row_bytes"])
    rows = dims.get("probes", dims["lookups"]) + dims["lookups"]
    bus = node.device.host_gb_per_s
    bus = min(nic.pcie_gb_per_s or bus, bus) * 1e3
    terms = {
        "memory": moved / (_C.memory_frac * nic.memory_gb_per_s * share * 1e3),
        "bus": dims["delivered_bytes"] / (_C.bus_frac * bus),
    }
    cores = (nic.cores or 0) * share
    if nic.engine_rows_per_us:
        terms["engines"] = rows / (nic.engine_rows_per_us * share)
    elif cores:
        terms["cores"] = rows * _C.row_us / _C.rows_in_flight / cores
        terms["adders"] = group.flop / (_C.core_adds_per_us * cores)
    if descriptors_per_us := nic.descriptors_per_us or nic.messages_per_us:
        terms["descriptors"] = dims["lookups"] / (descriptors_per_us * share)
    return Work(terms, _C.start_us)


register(
    NIC,
    "start_us + the longest of the other terms",
    _C.half_factor,
    _work,
    lambda _, machine: f"figures of {adapter(machine).name}; assumed: rows at random places",
)
