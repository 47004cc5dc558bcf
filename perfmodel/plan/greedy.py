"""Plans as TorchRec's planner makes them: by its formulas, its proposals and its partitioner.

Each shard costs what `torchrec.shard_cost` says, all of it one after the other; a plan is as good
as its busiest rank. Proposals: every table by its cheapest option, the dearest then by its next
one, again and again; and all tables by one sharding. Source: pytorch/torchrec,
distributed/planner/{proposers,partitioners}.py, in own words.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from perfmodel.designs import Deployment
from perfmodel.ops.storage import item_bytes
from perfmodel.plan.problem import (
    ANY,
    EVERY,
    GROUP,
    MEMORIES,
    NO_KIND,
    Beside,
    Floats,
    Ints,
    Layout,
    Problem,
)
from perfmodel.plan.shards import Way
from perfmodel.plan.torchrec import Topology, shard_cost
from perfmodel.units import BYTES_PER_GB

MOST_PROPOSALS = 100
KERNEL = {"hbm": "fused", "host": "fused_uvm_caching"}
FP32_BYTES = 4.0


def topology_of(deployment: Deployment) -> Topology:
    """The machine's own rates in the planner's place for them."""
    node = deployment.machine.node
    inter = node.nic.gb_per_s * (node.nics or 0) / node.gpus if node.nic else node.peer_gb_per_s
    return Topology(
        ranks=deployment.ranks,
        local_ranks=deployment.machine.linked_gpus,
        hbm_bytes_per_s=node.device.hbm_gb_per_s * BYTES_PER_GB,
        host_bytes_per_s=(node.device.pcie_gb_per_s or 1.0) * BYTES_PER_GB,
        intra_bytes_per_s=node.peer_gb_per_s * BYTES_PER_GB,
        inter_bytes_per_s=inter * BYTES_PER_GB,
        batch_per_rank=max(deployment.batch // deployment.ranks, 1),
    )


def with_formulas(problem: Problem, ways: tuple[Way, ...], deployment: Deployment) -> Problem:
    """The problem with TorchRec's cost of each shard as its work, and nothing else."""
    tables = deployment.workload.tables
    wire = deployment.workload.implementation.exchange_precision
    total = np.empty(len(ways))
    for dtype in {way.dtype for way in ways}:
        own = np.array([number for number, way in enumerate(ways) if way.dtype == dtype])
        mine = [ways[number] for number in own]
        total[own] = shard_cost(
            [tables[way.number].rows for way in mine],
            [way.shard.dim for way in mine],
            [tables[way.number].pooling for way in mine],
            [way.sharding for way in mine],
            ["dense" if way.sharding == "data_parallel" else KERNEL[way.tier] for way in mine],
            topology_of(deployment),
            float(item_bytes([dtype])[0]),
            float(item_bytes([wire])[0]),
        ).total_ms
    nothing = np.zeros(len(ways))
    choices = replace(
        problem.choices,
        kind=np.full(len(ways), NO_KIND),
        work_us=total * 1e3,
        sent_us=nothing,
        shared_us=nothing,
        summed_us=nothing,
    )
    return replace(problem, choices=choices, fixed_us=(), beside=Beside())


def greedy(problem: Problem) -> Layout | None:
    """The best of the proposals that fit, or None."""
    best = None
    for chosen in _proposals(problem):
        found = _partitioned(problem, chosen)
        if found is not None and (best is None or found.step_us < best.step_us):
            best = found
    return best


def _proposals(problem: Problem) -> Iterator[Ints]:
    choices = problem.choices
    shard, whole = choices.work_us, choices.work_us * choices.parts
    for cost in (shard, whole):
        ordered = [own[np.argsort(cost[own], kind="stable")] for own in problem.of_table]
        place = np.zeros(problem.tables, np.int64)
        for _ in range(MOST_PROPOSALS):
            chosen = np.array([own[at] for own, at in zip(ordered, place, strict=True)])
            yield chosen
            left = np.array([at + 1 < len(own) for own, at in zip(ordered, place, strict=True)])
            if not left.any():
                break
            place[int(np.where(left, cost[chosen], -np.inf).argmax())] += 1
    for name, tier in dict.fromkeys(zip(choices.sharding, choices.tier, strict=True)):
        is_it = np.array(
            [pair == (name, tier) for pair in zip(choices.sharding, choices.tier, strict=True)]
        )
        own = [each[is_it[each]] for each in problem.of_table]
        if all(len(each) for each in own):
            yield np.array([each[shard[each].argmin()] for each in own])


def _partitioned(problem: Problem, chosen: Ints) -> Layout | None:
    """Shards of all ranks, then of groups, then the others, the largest first, each to the rank
    that has least to do among those with room."""
    choices = problem.choices
    sizes = np.column_stack([getattr(choices, name) for name in MEMORIES])[chosen]
    work, parts, reach = (each[chosen] for each in (choices.work_us, choices.parts, choices.reach))
    busy, held = np.zeros(problem.ranks), np.zeros((problem.ranks, len(MEMORIES)))
    most = np.array([getattr(problem, name) for name in MEMORIES]) * (1 + 1e-12)
    ranks: list[tuple[int, ...]] = [()] * len(chosen)
    for number in np.lexsort((-(sizes.sum(axis=1) * parts), -reach)).tolist():
        room = (held + sizes[number] <= most).all(axis=1)
        where = _least(problem, busy, room, int(reach[number]), int(parts[number]))
        if where is None:
            return None
        busy[where] += work[number]
        held[where] += sizes[number]
        ranks[number] = tuple(sorted(where.tolist()))
    return Layout(problem, chosen, tuple(ranks))


def _least(problem: Problem, busy: Floats, room: Floats, reach: int, parts: int) -> Ints | None:
    load = np.where(room, busy, np.inf)
    if reach == EVERY:
        return np.arange(problem.ranks) if np.isfinite(load).all() else None
    if reach == GROUP:
        per_group = load.reshape(problem.groups, problem.linked).sum(axis=1)
        start = int(per_group.argmin()) * problem.linked
        return np.arange(start, start + parts) if np.isfinite(per_group.min()) else None
    assert reach == ANY
    found = np.argsort(load, kind="stable")[:parts]
    return found if np.isfinite(load[found]).all() else None
