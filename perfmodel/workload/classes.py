"""Ranks with equal work: one of each class stands for all of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from perfmodel.placement import Placement, TablePlacement
from perfmodel.workload.model import Workload
from perfmodel.workload.shards import placed, plan
from perfmodel.workload.tables import Table

UNLIKE = ("nvidia",)
"""Implementations whose ranks differ in more than their tables: none stands for all."""


@dataclass(frozen=True)
class RankClass:
    """Ranks that hold equal tables in the same order; per sample each reads `looked_up` elements
    and sends `pooled`."""

    ranks: tuple[int, ...]
    looked_up: float
    pooled: int


def rank_classes(
    workload: Workload, ranks: int, linked: int | None = None, placement: Placement | None = None
) -> list[RankClass]:
    """The classes of `ranks` under `placement`, else the plan of `workload`, by their first rank.

    Raises `WorkloadError` as `plan` and `placed` do.
    """
    if placement is None:
        shares, ways = plan(workload, ranks, linked).shards, None
    else:
        shares = placed(workload, placement, ranks, linked).shards
        ways = [replace(each, ranks=(0,), sharding="table_wise") for each in placement.tables]
    by_work: dict[tuple[tuple[Table, TablePlacement | None], ...], list[int]] = {}
    for rank, shards in enumerate(shares):
        key = tuple(
            (each.of(workload.tables), None if ways is None else ways[each.table])
            for each in shards
        )
        by_work.setdefault(key, []).append(rank)
    return [
        RankClass(
            tuple(own),
            sum(table.pooling * table.dim for table, _ in key),
            sum(table.dim for table, _ in key),
        )
        for key, own in by_work.items()
    ]


def decisive(classes: list[RankClass]) -> list[RankClass]:
    """The class that looks up and sends most, and where another sends most, that one too."""
    first = max(classes, key=lambda each: each.looked_up + each.pooled)
    sender = max(classes, key=lambda each: (each.pooled, each is first))
    return [first] if sender is first else [first, sender]
