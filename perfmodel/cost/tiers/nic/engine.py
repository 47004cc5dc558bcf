"""What an adapter's memory, its adders and its message engine take: the slowest of the three.

They work as a pipeline, row after row. Arm cores (a DPU) fetch rows with a few misses each in
flight; an FPGA's own engines (no cores) are bound by its memory alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.arrays import Floats
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.contract import TIERS, Estimate, Explanation
from perfmodel.errors import ModelError
from perfmodel.hardware import Cluster, Nic
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS
from perfmodel.ops.vocabulary.tiers import NIC

_C = coefficients("tiers.engine")
BURST_BYTES = _C.number("burst_bytes")
MEMORY_FRAC = _C.number("memory_frac")
BUS_FRAC = _C.number("bus_frac")
ROW_US = _C.number("row_us")
ROWS_IN_FLIGHT = _C.number("rows_in_flight")
CORE_ADDS_PER_US = _C.number("core_adds_per_us")
START_US = _C.number("start_us")
HALF_FACTOR = _C.number("half_factor")
NAME = f"{NIC}/heuristic"


@dataclass(frozen=True)
class _Work:
    """Per row of a frame, microseconds by resource and what is moved."""

    terms: dict[str, Floats]
    flop: Floats
    read_bytes: Floats
    written_bytes: Floats

    @property
    def duration_us(self) -> Floats:
        return np.asarray(START_US + np.maximum.reduce(list(self.terms.values())))


class NicMemory:
    """See the module."""

    def estimate(self, rows: Rows, machine: Cluster) -> Estimate:
        taken = _work(rows, machine).duration_us
        source = f"figures of {adapter(machine).name}; assumed: rows at random places"
        return Estimate(taken, taken / HALF_FACTOR, taken * HALF_FACTOR, NAME, source)

    def explain(self, rows: Rows, machine: Cluster) -> list[Explanation]:
        work = _work(rows, machine)
        names, terms = list(work.terms), np.array(list(work.terms.values()))
        slowest, taken = np.argmax(terms, axis=0), work.duration_us
        return [
            Explanation(
                duration_us=float(taken[at]),
                bound_by=names[slowest[at]],
                flop=float(work.flop[at]),
                read_bytes=float(work.read_bytes[at]),
                written_bytes=float(work.written_bytes[at]),
                utilisation_frac=float(terms[slowest[at], at] / taken[at]),
                terms={f"{name}_us": float(work.terms[name][at]) for name in names}
                | {"start_us": START_US},
                formula="start_us + the longest of the other terms",
            )
            for at in range(len(rows))
        ]


def adapter(machine: Cluster) -> Nic:
    """The nodes' adapter; `ModelError` where it has no memory for rows."""
    nic = machine.node.nic
    if nic is None or not nic.memory_gb_per_s or not nic.memory_bytes:
        raise ModelError(
            f"{machine.node.name}: its network adapter ({nic.name if nic else 'none'}) has no "
            "memory that could hold rows: use one such as bluefield-3 or u280"
        )
    return nic


def adapters_per_rank(machine: Cluster) -> float:
    """A rank's share of its node's adapters."""
    return (machine.node.nics or 1) / machine.node.gpus


def _work(rows: Rows, machine: Cluster) -> _Work:
    nic, share = adapter(machine), adapters_per_rank(machine)
    assert nic.memory_gb_per_s is not None
    names = ("moved", "rows", "flop", "sent", "delivered", "r", "w")
    columns = {name: np.zeros(len(rows)) for name in names}
    for op, index in rows.groups():
        spec, dims, item = OPS[op], rows.dims_of(op, index), rows.item_bytes(index)
        read, written = spec.read_bytes(dims, item), spec.written_bytes(dims, item)
        padding = np.ceil(dims["row_bytes"] / BURST_BYTES) * BURST_BYTES - dims["row_bytes"]
        columns["moved"][index] = read + written + dims["lookups"] * padding
        columns["rows"][index] = dims.get("probes", dims["lookups"]) + dims["lookups"]
        columns["flop"][index] = spec.flop(dims)
        columns["sent"][index] = dims["messages"]
        columns["delivered"][index] = dims["delivered_bytes"]
        columns["r"][index], columns["w"][index] = read, written
    memory_us = columns["moved"] / (MEMORY_FRAC * nic.memory_gb_per_s * share * 1e3)
    cores = (nic.cores or 0) * share
    bus_us = columns["delivered"] / (BUS_FRAC * machine.node.device.host_gb_per_s * 1e3)
    terms = {"memory": memory_us, "bus": bus_us}
    if cores:
        terms["cores"] = columns["rows"] * ROW_US / ROWS_IN_FLIGHT / cores
        terms["adders"] = columns["flop"] / (CORE_ADDS_PER_US * cores)
    if nic.messages_per_us:
        terms["messages"] = columns["sent"] / (nic.messages_per_us * share)
    return _Work(terms, columns["flop"], columns["r"], columns["w"])


TIERS.register(NIC)(NicMemory())
