"""TorchRec's formulas of what a shard costs, and the plan that is best by them.

Source: pytorch/torchrec (a48cef79), distributed/planner/{constants,types,shard_estimators}.py.
Nothing overlaps, rates know no sizes, and constants are those of its defaults. Each shard costs all
of `shard_cost`, one part after the other; a plan is as good as its busiest rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from perfmodel.base.arrays import Floats
from perfmodel.base.units import US_PER_MS
from perfmodel.designs import Deployment
from perfmodel.designs.layouts.default import shortage
from perfmodel.designs.layouts.problem import FixedTimes, Problem
from perfmodel.designs.layouts.search import packed_best, placement_of
from perfmodel.designs.layouts.surrogate import KINDS, problems
from perfmodel.errors import WorkloadError
from perfmodel.hardware import Cluster
from perfmodel.ops.spec import item_bytes
from perfmodel.prediction import Result, predict
from perfmodel.torchrec.shards import rates_of

GIB = float(1 << 30)
INDEX_BYTES = 8.0
MIN_WIDTH = 32
"""Narrower rows are read as if they had so many elements; only whole rows of a table are."""
UVM_SLOWDOWN, DENSE_FRAC = 10.0, 0.5
BACKWARD = 2.0
BATCHED_COPY, DENSE_OPTIMIZER = 2.455, 9.22


@dataclass(frozen=True)
class Topology:
    """Ranks, and bytes per second that the planner reckons with; its defaults."""

    ranks: int = 8
    local_ranks: int = 8
    hbm_bytes_per_s: float = 897 * GIB
    host_bytes_per_s: float = 32 * GIB
    """Between device and host memory."""
    intra_bytes_per_s: float = 600 * GIB
    inter_bytes_per_s: float = 12.5 * GIB
    batch_per_rank: int = 512
    cached_frac: float = 0.2

    def kernel_bytes_per_s(self, kernel: str) -> float:
        cached = self.cached_frac * self.hbm_bytes_per_s
        cached += (1 - self.cached_frac) * self.host_bytes_per_s
        return {
            "fused": self.hbm_bytes_per_s,
            "dense": DENSE_FRAC * self.hbm_bytes_per_s,
            "fused_uvm": self.host_bytes_per_s / UVM_SLOWDOWN,
            "fused_uvm_caching": cached / UVM_SLOWDOWN,
        }[kernel]


class ShardCost(NamedTuple):
    """Milliseconds per shard, `[shards]`; all of it one after the other."""

    forward_ms: Floats
    forward_comms_ms: Floats
    backward_ms: Floats
    backward_comms_ms: Floats

    @property
    def total_ms(self) -> Floats:
        return self.forward_ms + self.forward_comms_ms + self.backward_ms + self.backward_comms_ms


def shard_cost(
    rows: ArrayLike,
    columns: ArrayLike,
    pooling: ArrayLike,
    sharding: Sequence[str],
    kernel: Sequence[str],
    topology: Topology,
    item_bytes: ArrayLike = 4.0,
    wire_bytes: float = 4.0,
) -> ShardCost:
    """One shard of each of `n` tables: their `rows`, the shard's `columns`, lookups per sample.

    Arguments are `[n]`; elements are stored in `item_bytes`, and sent in `wire_bytes`. Kernels are
    those of `Topology.kernel_bytes_per_s`, `sharding` as of TorchRec.
    """
    height, width, lookups, stored = (
        np.asarray(each, np.float64) for each in (rows, columns, pooling, item_bytes)
    )
    it, kinds = topology, np.array(sharding, object)
    rate = np.array([it.kernel_bytes_per_s(each) for each in kernel]) / 1e3
    intra, inter = it.intra_bytes_per_s / 1e3, it.inter_bytes_per_s / 1e3
    whole = np.isin(kinds, ("table_wise", "column_wise"))
    by_row, within = kinds == "row_wise", kinds == "table_row_wise"
    replicated = kinds == "data_parallel"
    batch, nodes = it.batch_per_rank, it.ranks / it.local_ranks
    parts = np.select([by_row, within], [float(it.ranks), float(it.local_ranks)], 1.0)
    senders = np.where(replicated, 1.0, float(it.ranks))

    read = batch * lookups / parts * senders
    row_bytes = np.where(whole, np.maximum(width, MIN_WIDTH), width) * stored
    indices = np.where(whole, np.ceil(read * INDEX_BYTES), read * INDEX_BYTES)
    pooled = batch * senders * width * np.where(replicated, stored, wire_bytes)
    narrow = np.select([width >= 128, width >= 64], [1.0, 1.15], 1.75)
    forward = (indices + read * row_bytes + pooled) * np.where(whole, narrow, 1.0) / rate

    far = batch * nodes * width * wire_bytes / inter if nodes > 1 else 0.0
    among_all = pooled / (intra if nodes <= 1 else inter)
    comms = np.select([replicated, within], [0.0, pooled / intra + far], among_all)
    copied = np.where(by_row | within, pooled * BATCHED_COPY / rate, 0.0)
    # Gradients of whole tables among all ranks, and their dense optimizer.
    table_bytes, two = height * width * stored, min(nodes, 2.0)
    turns = (2 * two - 1) / two * (2 if nodes > 2 else 1)
    summed = table_bytes * (turns / (inter * it.local_ranks) + DENSE_OPTIMIZER / rate)
    backward_comms = np.where(replicated, summed, comms) + copied
    return ShardCost(forward, comms, BACKWARD * forward, backward_comms)


def topology_of(machine: Cluster, batch_per_rank: int = Topology.batch_per_rank) -> Topology:
    """The machine's ranks and own rates, as TorchRec's planner reckons with them."""
    about = machine.gpus, machine.linked_gpus, *rates_of(machine)
    return Topology(*about, batch_per_rank=batch_per_rank)


_KERNEL = {"hbm": "fused", "host": "fused_uvm_caching"}
_BESIDE_WORK = ("sent_us", "shared_us", "summed_us", "first_us", "scattered_us")


def with_formulas(problem: Problem, deployment: Deployment) -> Problem:
    """The problem with TorchRec's cost of each shard as its work, and nothing else; the machine's
    own rates are the topology."""
    here, tables = problem.ways, deployment.workload.tables
    cost = shard_cost(
        [tables[way.number].rows for way in here],
        [way.shard.dim for way in here],
        [tables[way.number].pooling for way in here],
        [way.sharding for way in here],
        ["dense" if way.sharding == "data_parallel" else _KERNEL[way.tier] for way in here],
        topology_of(deployment.machine, deployment.samples),
        np.array([item_bytes(way.dtype) for way in here]),
        item_bytes(deployment.workload.implementation.exchange_precision),
    )
    nothing: dict[str, Any] = {name: 0.0 * getattr(problem, name) for name in _BESIDE_WORK}
    nothing |= {"fixed_us": (0.0,) * len(KINDS), "beside": FixedTimes()}
    return replace(problem, work_us=cost.total_ms * US_PER_MS, **nothing)


def torchrec_plan(deployment: Deployment) -> Result:
    """The step, scheduled in full, of the layout that is best by TorchRec's formulas.

    Raises `WorkloadError` where no layout fits.
    """
    for problem in problems(deployment):
        found = packed_best(with_formulas(problem, deployment))
        if found is None:
            break
        placement = placement_of(deployment, replace(found, problem=problem))
        with suppress(WorkloadError):  # its step does not fit: with less room for tables
            return predict(deployment.with_(placement=placement)).results[0]
    raise WorkloadError(shortage(deployment))
