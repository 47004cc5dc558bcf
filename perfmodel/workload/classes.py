"""Ranks with equal work: one of each class stands for all of it."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.workload.model import Workload
from perfmodel.workload.shards import plan, work_of
from perfmodel.workload.tables import Table


@dataclass(frozen=True)
class RankClass:
    """Ranks that hold equal tables in the same order; `work` is what each reads and sends."""

    ranks: tuple[int, ...]
    work: float


def rank_classes(workload: Workload, ranks: int, linked: int | None = None) -> list[RankClass]:
    """The classes of `ranks` under the plan of `workload`, in order of their first rank.

    Raises `WorkloadError` as `plan` does.
    """
    found: dict[tuple[Table, ...], list[int]] = {}
    for rank, shards in enumerate(plan(workload, ranks, linked).shards):
        found.setdefault(tuple(each.of(workload.tables) for each in shards), []).append(rank)
    return [
        RankClass(tuple(own), sum(work_of(table) for table in tables))
        for tables, own in found.items()
    ]
