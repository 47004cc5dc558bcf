"""Where lookups find their rows: per table, the share of all of them in each tier of memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.designs.deployment import Deployment
from perfmodel.designs.smartnic import first_rank
from perfmodel.embedding import RowCache
from perfmodel.embedding.placement import CACHE_PLACES, NIC, all_memories
from perfmodel.workload import Table
from perfmodel.workload.adapter_caches import adapter_use
from perfmodel.workload.sharding import plan_of_placement
from perfmodel.workload.tables import row_bytes

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class TableHits:
    """One table: of all its `lookups` per batch, which share each tier answers; shares sum to 1.

    `fetched_rows` and `fetched_bytes` per batch are brought to the fastest cache from beyond it.
    """

    table: int
    lookups: float
    share: dict[str, float]
    fetched_rows: float
    fetched_bytes: float


@dataclass(frozen=True)
class Hits:
    """All tables of a deployment. Shares are overall: of all lookups, not of those that missed."""

    tables: tuple[TableHits, ...]

    @property
    def overall(self) -> dict[str, float]:
        """Share of all lookups of all tables that each tier answers."""
        total = sum(table.lookups for table in self.tables)
        return {
            tier: sum(table.lookups * table.share.get(tier, 0.0) for table in self.tables) / total
            for tier in all_memories()
            if any(table.share.get(tier) for table in self.tables)
        }

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {"overall": self.overall, "tables": [vars(table) for table in self.tables]}

    def to_frame(self) -> pd.DataFrame:
        """One row per table, a column per tier in use."""
        import pandas as pd

        return pd.DataFrame(
            {
                "table": table.table,
                "lookups": table.lookups,
                **{f"{tier}_frac": table.share.get(tier, 0.0) for tier in self.overall},
                "fetched_rows": table.fetched_rows,
                "fetched_bytes": table.fetched_bytes,
            }
            for table in self.tables
        )


def tier_hits(deployment: Deployment) -> Hits:
    """Where the lookups of a batch find their rows, in steady state.

    A table behind several caches is looked for in one after the other, the larger hold what the
    smaller do. Hot rows count as device memory.
    """
    workload, placement = deployment.workload, deployment.placement
    hits: dict[tuple[str, int], Floats] = {}
    in_adapters = adapter_shares(deployment)
    for cache in (each for each in placement.caches if CACHE_PLACES[each.at] != NIC):
        for number, *use in _tier_uses(deployment, cache):
            key = cache.name, number
            hits[key] = hits.get(key, np.zeros(3)) + use
    tables = []
    for number, (table, where) in enumerate(zip(workload.tables, placement.tables, strict=True)):
        left, share = 1.0, dict[str, float]()
        fetched_rows = 0.0
        if where.hot_rows and where.tier != "hbm":
            hot = float(table.popularity().covered_frac(where.hot_rows))
            share["hbm"], left = hot, 1.0 - hot
        if in_adapters[number]:
            share[NIC] = in_adapters[number]
            left -= share[NIC]
        behind = [n for n in where.caches if CACHE_PLACES[placement.cache(n).at] != NIC]
        for at, name in enumerate(behind):
            looked, missed, fetched = hits.get((name, number), np.zeros(3)).tolist()
            missed = min(missed / looked if looked else 1.0, left)
            tier = CACHE_PLACES[placement.cache(name).at]
            share[tier] = share.get(tier, 0.0) + left - missed
            left = missed
            if at == 0:
                fetched_rows = fetched
        share[where.tier] = share.get(where.tier, 0.0) + left
        size = row_bytes(table, where.dtype)
        lookups = float(table.lookups(deployment.batch))
        tables.append(TableHits(number, lookups, share, fetched_rows, fetched_rows * size))
    return Hits(tuple(tables))


def adapter_shares(deployment: Deployment) -> list[float]:
    """Per table the share of all its lookups that adapters answer, as the first rank sees it.

    What local caches find of tables that it does not hold is taken from those that it does.
    """
    tables = deployment.workload.tables
    run = first_rank(deployment)
    ranks, linked = run.ranks, run.linked
    use = adapter_use(run)
    if use is None:
        return [0.0] * len(tables)
    own = {shard.table for shard in run.plan.shards[0]}
    asked = sum(use.tables[number].asked_frac for number in own)
    local = sum(use.tables[number].left_frac for number in own) / asked if asked else 1.0
    apart = 1.0 - linked / ranks
    return [
        apart * (1.0 - (each.left_frac if number in own else each.asked_frac * local))
        if any(name.startswith("nic") for name in deployment.placement.tables[number].caches)
        else 0.0
        for number, each in enumerate(use.tables)
    ]


def answers_spared(deployment: Deployment) -> list[float]:
    """Per table the share of bags of the first rank of which no answer comes from another rank,
    because its adapter holds all their rows; 0 without caches in adapters."""
    use = adapter_use(first_rank(deployment))
    tables = len(deployment.workload.tables)
    return [0.0] * tables if use is None else [1.0 - each.answered_frac for each in use.tables]


def _tier_uses(
    deployment: Deployment, cache: RowCache
) -> Iterator[tuple[int, float, float, float]]:
    """(table, lookups, those that miss, rows fetched) per batch, rank by rank."""
    batches = cache.batches_ahead
    seen: dict[tuple[object, ...], list[tuple[int, float, float, float]]] = {}
    for own in filter(None, _per_rank(deployment, cache.name)):
        key = tuple(own)
        if key not in seen:
            dtypes = [deployment.placement.tables[number].dtype for number, _, _ in own]
            accesses = [
                table.access(table.lookups(samples) * batches, row_bytes(table, dtype))
                for (_, table, samples), dtype in zip(own, dtypes, strict=True)
            ]
            use = cache.steady_use(accesses)
            missed = (1 - use.hit_frac) * use.lookups
            columns = np.array([use.lookups, missed, use.fetched_rows]).T / batches
            numbers = [number for number, _, _ in own]
            seen[key] = [
                (number, *row) for number, row in zip(numbers, columns.tolist(), strict=True)
            ]
        yield from seen[key]


def _per_rank(deployment: Deployment, name: str) -> Iterator[list[tuple[int, Table, int]]]:
    """Per rank the tables, or parts of them, behind the cache, and for how many samples."""
    workload, placement, ranks = deployment.workload, deployment.placement, deployment.ranks
    layout = plan_of_placement(workload, placement, ranks, deployment.machine.linked_gpus)
    every = [
        (number, workload.tables[number], deployment.batch // ranks) for number in layout.replicated
    ]
    for shards in layout.shards:
        own = [(shard.table, shard.of(workload.tables), deployment.batch) for shard in shards]
        yield [part for part in (*own, *every) if name in placement.tables[part[0]].caches]
