"""Ranks with equal work: one of each class stands for all of it."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.workload.model import Workload
from perfmodel.workload.shards import plan
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


def rank_classes(workload: Workload, ranks: int, linked: int | None = None) -> list[RankClass]:
    """The classes of `ranks` under the plan of `workload`, in order of their first rank.

    Raises `WorkloadError` as `plan` does.
    """
    found: dict[tuple[Table, ...], list[int]] = {}
    for rank, shards in enumerate(plan(workload, ranks, linked).shards):
        found.setdefault(tuple(each.of(workload.tables) for each in shards), []).append(rank)
    return [
        RankClass(
            tuple(own),
            sum(table.pooling * table.dim for table in tables),
            sum(table.dim for table in tables),
        )
        for tables, own in found.items()
    ]


def decisive(classes: list[RankClass]) -> list[RankClass]:
    """The class that looks up and sends most, and where another sends most, that one too."""
    first = max(classes, key=lambda each: each.looked_up + each.pooled)
    sender = max(classes, key=lambda each: (each.pooled, each is first))
    return [first] if sender is first else [first, sender]
