"""Ranks with equal work: one of each class stands for all of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from perfmodel.ops.stored_rows import row_bytes
from perfmodel.placement import Placement, TablePlacement
from perfmodel.workload.model import Workload
from perfmodel.workload.shards import placed, plan
from perfmodel.workload.tables import Table

UNLIKE = ("nvidia",)
"""Implementations whose ranks differ in more than their tables: none stands for all."""


@dataclass(frozen=True)
class RankClass:
    """Ranks that hold equal tables in the same order; per sample each reads `looked_up` elements
    and sends `pooled`. Per batch it needs about `missed_bytes` of rows from beside its device."""

    ranks: tuple[int, ...]
    looked_up: float
    pooled: int
    missed_bytes: float = 0.0


def rank_classes(
    workload: Workload,
    ranks: int,
    linked: int | None = None,
    placement: Placement | None = None,
    batch: int | None = None,
) -> list[RankClass]:
    """The classes of `ranks` under `placement`, else the plan of `workload`, by their first rank.

    `batch` is global, the workload's where it is not given.

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
            0.0 if placement is None else _missed_bytes(key, placement, batch or workload.batch),
        )
        for key, own in by_work.items()
    ]


def decisive(classes: list[RankClass]) -> list[RankClass]:
    """The class that looks up and sends most, and where others send or miss most, those too."""
    first = max(classes, key=lambda each: each.looked_up + each.pooled)
    sender = max(classes, key=lambda each: (each.pooled, each is first))
    misser = max(classes, key=lambda each: (each.missed_bytes, each is first, each is sender))
    found = [first]
    for other in (sender, misser):
        if other not in found:
            found.append(other)
    return found


def _missed_bytes(
    held: tuple[tuple[Table, TablePlacement | None], ...], placement: Placement, batch: int
) -> float:
    """Distinct rows of a batch in tables beside device memory, less the part that their largest
    cache could hold of all their rows."""
    slow = [
        (table, way, float(row_bytes(way.dtype, table.dim)))
        for table, way in held
        if way is not None and way.tier != "hbm"
    ]
    if not slow:
        return 0.0
    total = sum(table.rows * size for table, _, size in slow)
    rooms = [placement.cache(name).capacity_bytes for _, way, _ in slow for name in way.caches]
    missing = max(1.0 - max(rooms, default=0.0) / total, 0.0)
    return missing * sum(table.unique_rows(batch) * size for table, _, size in slow)
