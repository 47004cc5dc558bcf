"""The placement that a workload's own plan means."""

from __future__ import annotations

from perfmodel.placement import Placement, TablePlacement
from perfmodel.workload.model import Workload
from perfmodel.workload.shards import Plan, Shard


def placement_of(plan: Plan, workload: Workload) -> Placement:
    """The placement, all tables in device memory, that `plan` means.

    Of a table's column-wise slices, two on one rank count as one: a placement's parts are equal.
    """
    every = tuple(range(len(plan.shards)))
    found: dict[int, TablePlacement] = {
        number: TablePlacement("data_parallel", every) for number in plan.replicated
    }
    held: dict[int, list[int]] = {}
    shard_of: dict[int, Shard] = {}
    for rank, own in enumerate(plan.shards):
        for shard in own:
            held.setdefault(shard.table, []).append(rank)
            shard_of[shard.table] = shard
    for number, ranks in held.items():
        shard = shard_of[number]
        ranks = list(dict.fromkeys(ranks))
        ranks = ranks[: workload.tables[number].rows] if shard.parts > 1 else ranks
        kind = "row_wise" if shard.parts > 1 else "column_wise" if shard.columns > 1 else None
        found[number] = TablePlacement(kind or "table_wise", tuple(ranks))  # type: ignore[arg-type]
    dtype = workload.implementation.table_precision
    return Placement(tuple(found[number] for number in range(len(workload.tables)))).edited(
        lambda _number, _placed: {"dtype": dtype}
    )
