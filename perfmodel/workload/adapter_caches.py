"""What caches of other ranks' rows in network adapters leave of a step's lookups and exchanges.

A rank's adapter looks for the keys of its own samples that other ranks hold in its cache. It serves
bags all of whose rows it has, which need no answer then; the keys of all others go out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from perfmodel.embedding import TableAccess
from perfmodel.embedding.placement import NIC
from perfmodel.ops.spec import row_bytes
from perfmodel.workload.sharding import Shard
from perfmodel.workload.step import Run
from perfmodel.workload.tables import FP32_BYTES, Table


@dataclass(frozen=True)
class AdapterUse:
    """Per table of the workload, what the adapters find of its lookups by ranks across the network.

    `asked_frac`: of the bags, and so of the lookups, those that the requester's adapter leaves to
    the owner; of the own tables, of `asked_rows` distinct rows.
    """

    asked_frac: tuple[float, ...]
    asked_rows: dict[int, float]

    def sent_lookups(self, run: Run) -> list[int]:
        """Indices of the own samples to each rank."""
        return [self._asked(run, shards, rank) for rank, shards in enumerate(run.plan.shards)]

    def received_split(self, run: Run) -> list[int]:
        """Indices of each rank's samples for the own shards."""
        own = run.plan.shards[run.rank]
        return [self._asked(run, own, rank) for rank in range(run.ranks)]

    def answered_fracs(self, run: Run) -> tuple[float, ...]:
        """Per rank, the share of its pooled rows for others that it sends."""
        answered = []
        for shards in run.plan.shards:
            dims = [shard.of(run.workload.tables).dim for shard in shards]
            kept = [self.asked_frac[shard.table] for shard in shards]
            answered.append(float(np.average(kept, weights=dims)) if dims else 1.0)
        return tuple(answered)

    def _asked(self, run: Run, shards: Sequence[Shard], rank: int) -> int:
        lookups = [shard.of(run.workload.tables).lookups(run.batch) for shard in shards]
        if not is_across_network(run, rank):
            return sum(lookups)
        return round(float(np.dot(lookups, [self.asked_frac[shard.table] for shard in shards])))


def is_across_network(run: Run, rank: int) -> bool:
    """Whether the network lies between `rank` and the own one; links carry all else."""
    return rank // run.linked != run.rank // run.linked


def adapter_use(run: Run) -> AdapterUse | None:
    """What the adapters find in a step of `run`; None where no table has a cache in one."""
    are_cached = any(cache.at == NIC for cache in run.placement.caches)
    return _use(run) if are_cached and run.groups > 1 else None


@lru_cache(maxsize=8)  # each exchange of a step asks for it
def _use(run: Run) -> AdapterUse:
    tables, ranks, groups, batch = run.workload.tables, run.ranks, run.groups, run.batch
    placement = run.placement
    asked_frac, asked_rows = [1.0] * len(tables), dict[int, float]()

    def access(number: int, table: Table, lookups: float) -> TableAccess:
        size = float(row_bytes(placement.tables[number].dtype, table.dim))
        return table.access(max(lookups, 1e-9), size)

    for cache in placement.caches:
        cached = [n for n, table in enumerate(placement.tables) if cache.name in table.caches]
        if cache.at == NIC and cached:
            # A cache holds tables of all groups of ranks but its own: that much more of each.
            larger = replace(cache, capacity_bytes=cache.capacity_bytes * groups / (groups - 1))
            found = larger.steady_use(
                [access(n, tables[n], ranks * tables[n].lookups(batch)) for n in cached]
            )
            for number, hit in zip(cached, found.hit_frac.tolist(), strict=True):
                table = tables[number]
                bags = hit if table.key_rows else hit ** max(table.pooling, 1.0)
                asked_frac[number] = 1.0 - bags
    others = ranks - ranks // groups
    for shard in run.plan.shards[run.rank]:
        part = shard.of(tables)
        count = part.lookups(batch) * others * asked_frac[shard.table]
        coming = access(shard.table, part, count)
        asked_rows[shard.table] = float(coming.popularity.distinct_rows(coming.lookups))
    return AdapterUse(tuple(asked_frac), asked_rows)


def answered_lookups(run: Run, use: AdapterUse) -> dict[str, float]:
    """Of tables that others hold: keys, those found, bags of them, what goes to the device."""
    near = [rank for rank in range(run.ranks) if not is_across_network(run, rank)]
    close = {s.table for rank in near for s in run.plan.shards[rank] if s.parts == 1}
    probes = found = moved = bags = elements = 0.0
    for number in run.plan.shard_of:
        table, frac = run.workload.tables[number], 1.0 - use.asked_frac[number]
        if number in close or frac <= 0:
            continue
        lookups = table.lookups(run.batch)
        probes, found = probes + lookups, found + frac * lookups
        moved += frac * lookups * float(row_bytes(run.placement.tables[number].dtype, table.dim))
        bags += frac * run.batch
        elements += frac * run.batch * table.dim
    return {
        "probes": probes,
        "lookups": found,
        "row_bytes": moved / max(found, 1.0),
        "bags": bags,
        "dim": elements / max(bags, 1.0),
        "delivered_bytes": elements * FP32_BYTES,
    }
