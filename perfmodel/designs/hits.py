"""Where lookups find their rows: per table, the share of all of them in each tier of memory."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.designs.deployment import Deployment
from perfmodel.embedding import RowCache
from perfmodel.embedding.placement import NIC, all_memories
from perfmodel.workload.adapter_caches import adapter_use
from perfmodel.workload.sharding import plan_of_placement
from perfmodel.workload.step import Run
from perfmodel.workload.tables import row_bytes

if TYPE_CHECKING:
    import pandas as pd


def tier_hits(deployment: Deployment) -> pd.DataFrame:
    """Where the lookups of a batch find their rows, in steady state.

    Per table a row: its `lookups` per batch, and of all of them the share that each tier in use
    answers, which sum to 1 (`hbm_frac`, ...). `fetched_rows` and `fetched_bytes` per batch are
    brought to the fastest cache from beyond it.

    A table behind several caches is looked for in one after the other, the larger hold what the
    smaller do. Hot rows count as device memory.
    """
    import pandas as pd

    tables, placement = deployment.workload.tables, deployment.placement
    beside = [cache for cache in placement.caches if cache.at != NIC]
    found = {cache.name: _cache_use(deployment, cache) for cache in beside}
    rows: list[dict[str, Any]] = []
    every = zip(tables, placement.tables, adapter_shares(deployment), strict=True)
    for number, (table, where, in_adapters) in enumerate(every):
        share = dict.fromkeys(all_memories(), 0.0) | {NIC: in_adapters}
        if where.hot_rows and where.tier != "hbm":
            share["hbm"] = float(table.popularity().covered_frac(where.hot_rows))
        left, fetched_rows = 1.0 - share["hbm"] - in_adapters, 0.0
        behind = [name for name in where.caches if name in found]
        for name in behind:
            looked, missed, fetched = found[name][number].tolist()
            missed = min(missed / looked if looked else 1.0, left)
            share[placement.cache(name).at] += left - missed
            left = missed
            fetched_rows = fetched if name == behind[0] else fetched_rows
        share[where.tier] += left
        rows.append(
            {
                "table": number,
                "lookups": float(table.lookups(deployment.batch)),
                **{f"{tier}_frac": frac for tier, frac in share.items()},
                "fetched_rows": fetched_rows,
                "fetched_bytes": fetched_rows * row_bytes(table, where.dtype),
            }
        )
    frame = pd.DataFrame(rows)
    unused = [name for name in frame.filter(regex="_frac$") if not frame[name].any()]
    return frame.drop(columns=unused)


def overall_hits(deployment: Deployment) -> dict[str, float]:
    """Share of all lookups of all tables that each tier in use answers."""
    frame = tier_hits(deployment)
    shares = frame.filter(regex="_frac$")
    of_tier = shares.mul(frame["lookups"], axis=0).sum() / frame["lookups"].sum()
    return {str(name).removesuffix("_frac"): share for name, share in of_tier.items()}


def adapter_shares(deployment: Deployment) -> list[float]:
    """Per table the share of all its lookups that adapters answer, as the first rank sees it."""
    it, ranks, linked = deployment, deployment.ranks, deployment.machine.linked_gpus
    layout = plan_of_placement(it.workload, it.placement, ranks, linked)
    about = it.workload, it.samples, ranks, 0, it.machine.node.device.target, it.train
    use = adapter_use(Run(*about, layout, linked, it.placement))
    if use is None:
        return [0.0] * len(it.placement.tables)
    apart = 1.0 - linked / ranks
    return [apart * (1.0 - each.asked_frac) for each in use.tables]


def _cache_use(deployment: Deployment, cache: RowCache) -> dict[int, Floats]:
    """Per table, of all ranks: lookups per batch, those that miss, rows fetched."""
    it, samples, ahead = deployment, deployment.samples, cache.batches_ahead
    tables, placed = it.workload.tables, it.placement.tables
    layout = plan_of_placement(it.workload, it.placement, it.ranks, it.machine.linked_gpus)
    every = [(number, tables[number], samples) for number in layout.replicated]
    total: dict[int, Floats] = defaultdict(lambda: np.zeros(3))
    for shards in layout.shards:
        own = [(shard.table, shard.of(tables), it.batch) for shard in shards]
        held = [part for part in (*own, *every) if cache.name in placed[part[0]].caches]
        if not held:
            continue
        use = cache.steady_use(
            [
                table.access(table.lookups(count) * ahead, row_bytes(table, placed[number].dtype))
                for number, table, count in held
            ]
        )
        missed = (1 - use.hit_frac) * use.lookups
        columns = np.array([use.lookups, missed, use.fetched_rows]).T / ahead
        for (number, _, _), row in zip(held, columns, strict=True):
            total[number] = total[number] + row
    return total
