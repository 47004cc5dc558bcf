"""Rows in the memory of network adapters: what reading them takes, and what a step saves by it.

The slowest of an adapter's memory, engines or cores, descriptors, messages and bus decides.

They work as a pipeline, row after row. Arm cores (a DPU) fetch rows with a few misses each in
flight; engines of an FPGA start so many rows per microsecond. Every row that is read or written
takes a descriptor; what goes out or comes in takes messages of so many bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.registry import Registry
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.gpu.analysis import Group
from perfmodel.cost.learned.forest import Forest, read_trees
from perfmodel.cost.tiers import TIERS, Tier, Work, around
from perfmodel.errors import ModelError
from perfmodel.hardware import Cluster, Nic
from perfmodel.ops.rows import Rows
from perfmodel.ops.vocabulary.tiers import NIC

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


def adapters_per_rank(machine: Cluster) -> float:
    """A rank's share of its node's adapters."""
    return (machine.node.nics or 1) / machine.node.gpus


class NicMemory(Tier):
    """See the module."""

    name = f"{NIC}/heuristic"
    formula = "start_us + the longest of the other terms"
    interval = around(_C.half_factor)

    def source(self, rows: Rows, machine: Cluster) -> str:
        return f"figures of {adapter(machine).name}; assumed: rows at random places"

    def work(self, group: Group, machine: Cluster) -> Work:
        nic, share, dims = adapter(machine), adapters_per_rank(machine), group.dims
        assert nic.memory_gb_per_s is not None
        padded = np.ceil(dims["row_bytes"] / _C.burst_bytes) * _C.burst_bytes
        moved = group.moved_bytes + dims["lookups"] * (padded - dims["row_bytes"])
        rows = dims.get("probes", dims["lookups"]) + dims["lookups"]
        bus = machine.node.device.host_gb_per_s
        bus = min(nic.pcie_gb_per_s or bus, bus) * 1e3
        delivered_us = dims["delivered_bytes"] / (_C.bus_frac * bus)
        terms = {
            "memory": moved / (_C.memory_frac * nic.memory_gb_per_s * share * 1e3),
            "bus": np.maximum(delivered_us, dims["fetched_bytes"] / (_C.bus_read_frac * bus)),
        }
        cores = (nic.cores or 0) * share
        if nic.engine_rows_per_us:
            terms["engines"] = rows / (nic.engine_rows_per_us * share)
        elif cores:
            terms["cores"] = rows * _C.row_us / _C.rows_in_flight / cores
            terms["adders"] = group.flop / (_C.core_adds_per_us * cores)
        if nic.messages_per_us:
            terms["messages"] = dims["messages"] / (nic.messages_per_us * share)
        if descriptors_per_us := nic.descriptors_per_us or nic.messages_per_us:
            terms["descriptors"] = dims["lookups"] / (descriptors_per_us * share)
        return Work(terms, _C.start_us)


TIERS.register(NIC)(NicMemory())


@dataclass(frozen=True)
class StepChange:
    """What rows in adapters change in a step of one rank, microseconds of each part alone.

    `wire_before_us` and `wire_after_us`: keys and pooled rows to and from other nodes; `probe_us`:
    keys looked for before the others go; `read_us`: rows read, added up and brought to the device,
    while answers come; `write_us`: changed rows written through. `samples` of a rank, one of
    `ranks`, with `vector_bytes` per bag; `in_rows`: every rank has a part of every table.
    """

    wire_before_us: float
    wire_after_us: float
    probe_us: float
    read_us: float
    write_us: float
    samples: float
    ranks: float
    vector_bytes: float
    in_rows: bool
    train: bool


class StepSaving(Protocol):
    """Says what a step becomes shorter by (microseconds; below 0 it becomes longer)."""

    def saved_us(self, change: StepChange) -> float: ...


NIC_COSTS: Registry[StepSaving] = Registry(
    "NIC cost model", "perfmodel.nic_costs", "perfmodel.cost.tiers.nic"
)
"""`heuristic`: the closed form; `learned`: corrected by what scheduled steps say."""


class ClosedSaving:
    """Keys wait for the probe, rows are read beside the exchange, writes come behind."""

    def saved_us(self, change: StepChange) -> float:
        after = max(change.wire_after_us, change.read_us)
        return change.wire_before_us - after - change.probe_us - change.write_us


COST_SCHEMA = "perfmodel.nic_cost/2"
BUNDLED_COST = Path(__file__).with_name("nic_cost.json")
COST_FEATURES = (
    *("closed_frac", "wire_after_frac", "probe_frac", "read_frac", "write_frac"),
    *("log_wire_us", "log_samples", "log_ranks", "log_vector_bytes", "in_rows", "train"),
)
MAX_FRAC = 4.0
"""Savings, and parts, of more than so many times the wire's time are clipped to that."""


class LearnedSaving:
    """The closed form, corrected by trees that were fitted to scheduled steps."""

    @cached_property
    def trees(self) -> Forest:
        """Those that come with the package."""
        return read_trees(BUNDLED_COST, COST_SCHEMA, COST_FEATURES)

    def saved_us(self, change: StepChange) -> float:
        found = fitted_saving_frac(self.trees, cost_features_of(change)[None, :])
        return float(found[0]) * change.wire_before_us


NIC_COSTS.register("heuristic")(ClosedSaving())
NIC_COSTS.register("learned")(LearnedSaving())


def cost_features_of(change: StepChange) -> Floats:
    """`[COST_FEATURES]`: parts as shares of what the wire takes without adapters."""
    wire = max(change.wire_before_us, 1e-3)
    parts = (change.wire_after_us, change.probe_us, change.read_us, change.write_us)
    shares = np.array([NIC_COSTS["heuristic"].saved_us(change), *parts]) / wire
    sizes = np.log([wire, change.samples, change.ranks, change.vector_bytes])
    kinds = [float(change.in_rows), float(change.train)]
    return np.concatenate([np.clip(shares, -MAX_FRAC, MAX_FRAC), sizes, kinds])


def fitted_saving_frac(trees: Forest, features: Floats) -> Floats:
    """Savings as shares of the wire's time, of steps `[steps, features]`."""
    return np.asarray(features[:, COST_FEATURES.index("closed_frac")] + trees.predict(features))
