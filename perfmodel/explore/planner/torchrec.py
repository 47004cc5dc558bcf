"""TorchRec's formulas of what a shard costs.

Source: pytorch/torchrec (a48cef79), distributed/planner/{constants,types,shard_estimators}.py, in
own words. Nothing overlaps, rates know no sizes, and constants are those of its defaults. Each
shard costs all of `shard_cost`, one part after the other; a plan is as good as its busiest rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from perfmodel.base.arrays import Floats
from perfmodel.base.units import BYTES_PER_GB
from perfmodel.designs import Deployment
from perfmodel.explore.planner.problem import NO_KIND, FixedTimes, Problem
from perfmodel.ops.dtypes import item_bytes

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
        """Of a compute kernel."""
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
    item_bytes: float = 4.0,
    wire_bytes: float = 4.0,
) -> ShardCost:
    """One shard of each of `n` tables: their `rows`, the shard's `columns`, lookups per sample.

    Arguments are `[n]`; elements are stored in `item_bytes`, and sent in `wire_bytes`. Kernels are
    those of `Topology.kernel_bytes_per_s`, `sharding` as of TorchRec.
    """
    height, width, lookups = (np.asarray(each, np.float64) for each in (rows, columns, pooling))
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
    row_bytes = np.where(whole, np.maximum(width, MIN_WIDTH), width) * item_bytes
    indices = np.where(whole, np.ceil(read * INDEX_BYTES), read * INDEX_BYTES)
    pooled = batch * senders * width * np.where(replicated, item_bytes, wire_bytes)
    narrow = np.select([width >= 128, width >= 64], [1.0, 1.15], 1.75)
    forward = (indices + read * row_bytes + pooled) * np.where(whole, narrow, 1.0) / rate

    far = batch * nodes * width * wire_bytes / inter if nodes > 1 else 0.0
    among_all = pooled / (intra if nodes <= 1 else inter)
    comms = np.select([replicated, within], [0.0, pooled / intra + far], among_all)
    copied = np.where(by_row | within, pooled * BATCHED_COPY / rate, 0.0)
    # Gradients of whole tables among all ranks, and their dense optimizer.
    table_bytes, two = height * width * item_bytes, min(nodes, 2.0)
    turns = (2 * two - 1) / two * (2 if nodes > 2 else 1)
    summed = table_bytes * (turns / (inter * it.local_ranks) + DENSE_OPTIMIZER / rate)
    backward_comms = np.where(replicated, summed, comms) + copied
    return ShardCost(forward, comms, BACKWARD * forward, backward_comms)


def with_formulas(problem: Problem, deployment: Deployment) -> Problem:
    """The problem with TorchRec's cost of each shard as its work, and nothing else; the machine's
    own rates are the topology."""
    node, tables = deployment.machine.node, deployment.workload.tables
    inter = node.nic.gb_per_s * (node.nics or 0) / node.gpus if node.nic else node.peer_gb_per_s
    topology = Topology(
        ranks=deployment.ranks,
        local_ranks=deployment.machine.linked_gpus,
        hbm_bytes_per_s=node.device.hbm_gb_per_s * BYTES_PER_GB,
        host_bytes_per_s=(node.device.pcie_gb_per_s or 1.0) * BYTES_PER_GB,
        intra_bytes_per_s=node.peer_gb_per_s * BYTES_PER_GB,
        inter_bytes_per_s=inter * BYTES_PER_GB,
        batch_per_rank=max(deployment.batch // deployment.ranks, 1),
    )
    wire = float(item_bytes([deployment.workload.implementation.exchange_precision])[0])
    total_ms = np.empty(len(problem.ways))
    for dtype in {way.dtype for way in problem.ways}:
        own = [number for number, way in enumerate(problem.ways) if way.dtype == dtype]
        mine = [problem.ways[number] for number in own]
        beside = ["fused" if way.tier == "hbm" else "fused_uvm_caching" for way in mine]
        total_ms[own] = shard_cost(
            [tables[way.number].rows for way in mine],
            [way.shard.dim for way in mine],
            [tables[way.number].pooling for way in mine],
            [way.sharding for way in mine],
            [
                "dense" if way.sharding == "data_parallel" else kernel
                for way, kernel in zip(mine, beside, strict=True)
            ],
            topology,
            float(item_bytes([dtype])[0]),
            wire,
        ).total_ms
    nothing = np.zeros(len(total_ms))
    return replace(
        problem,
        kind=np.full(len(total_ms), NO_KIND),
        work_us=total_ms * 1e3,
        sent_us=nothing,
        shared_us=nothing,
        summed_us=nothing,
        fixed_us=(),
        beside=FixedTimes(),
    )
