"""What caches of rows in network adapters leave of a step's lookups and exchanges.

A rank's adapter looks for the keys of its own samples that other ranks hold in its remote cache;
the rest go out. What comes in is looked for in its local cache; the rest goes to the device. Both
add rows up: a bag whose lookups were all found by the requester needs no answer, and a partial sum
of the local cache joins the device's on its way out. A trained row is written to where it is
cached: its owner's adapter, and those of all other ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from perfmodel.errors import WorkloadError
from perfmodel.ops.stored_rows import row_bytes
from perfmodel.placement import Placement, RowCache
from perfmodel.tiers.nic.cache import NicFound, NicLoad, NicTable, by_bags, found_in
from perfmodel.workload.parts.query_order import OrderOf, order_of
from perfmodel.workload.run import Run
from perfmodel.workload.shards import Plan, Shard
from perfmodel.workload.tables import Table

LOCAL, REMOTE = "nic_local", "nic_remote"


@dataclass(frozen=True)
class TableUse:
    """What the adapters find of one table's lookups by ranks that do not hold it.

    `asked_frac`: of these lookups, those that the requester's remote cache leaves; `answered_frac`:
    of the bags, those that then need an answer; `left_frac`: of the lookups, those that the
    owner's local cache leaves to its device. `remote_rows` and `local_rows`: distinct rows in these
    caches that a batch of all ranks changes, of the whole table.
    """

    asked_frac: float = 1.0
    answered_frac: float = 1.0
    left_frac: float = 1.0
    left_rows: float = 0.0
    remote_rows: float = 0.0
    local_rows: float = 0.0


@dataclass(frozen=True)
class AdapterUse:
    """Per table of the workload what the adapters find, and what the order of queries costs."""

    tables: tuple[TableUse, ...]
    order: OrderOf

    def sent_lookups(self, run: Run) -> list[int]:
        """Indices of the own samples to each rank; of a training step all, which updates need."""
        return [
            round(sum(self._asked(run, shard, is_apart(run, rank)) for shard in shards))
            for rank, shards in enumerate(run.plan.shards)
        ]

    def received_split(self, run: Run) -> list[int]:
        """Indices of each rank's samples for the own shards."""
        own = run.plan.shards[run.rank]
        return [
            round(sum(self._asked(run, shard, is_apart(run, rank)) for shard in own))
            for rank in range(run.ranks)
        ]

    def answered_fracs(self, run: Run) -> tuple[float, ...]:
        """Per rank, the share of its pooled rows for others that it sends."""
        found = []
        for shards in run.plan.shards:
            dims = [shard.of(run.workload.tables).dim for shard in shards]
            kept = [self.tables[shard.table].answered_frac for shard in shards]
            found.append(float(np.average(kept, weights=dims)) if dims else 1.0)
        return tuple(found)

    def _asked(self, run: Run, shard: Shard, is_remote: bool) -> float:
        lookups = shard.of(run.workload.tables).lookups(run.batch)
        spared = is_remote and not run.train
        return lookups * (self.tables[shard.table].asked_frac if spared else 1.0)


def is_apart(run: Run, rank: int) -> bool:
    """Whether the network lies between `rank` and the own one; links carry all else."""
    return rank // run.linked != run.rank // run.linked


def adapter_use(run: Run) -> AdapterUse | None:
    """What the adapters find in a step of `run`; None where no table has a cache in one."""
    if run.placement is None or run.ranks == run.linked:
        return None
    if not any(cache.at in (LOCAL, REMOTE) for cache in run.placement.caches):
        return None
    tables = run.workload.tables
    return _use(tables, run.placement, run.plan, run.batch, run.ranks, run.rank, run.linked)


def answered_fracs(run: Run) -> tuple[float, ...]:
    """See `AdapterUse`; empty where no adapter has a cache."""
    use = adapter_use(run)
    return () if use is None else use.answered_fracs(run)


@lru_cache(maxsize=64)
def _use(
    tables: tuple[Table, ...],
    placement: Placement,
    plan: Plan,
    batch: int,
    ranks: int,
    rank: int,
    linked: int,
) -> AdapterUse:
    caches = {cache.at: cache for cache in placement.caches if cache.at in (LOCAL, REMOTE)}
    orders = {cache.order for cache in caches.values()}
    if len(orders) > 1:
        raise WorkloadError(f"caches of adapters: two orders of queries: {', '.join(orders)}")
    order = order_of(tables, batch, orders.pop())
    mine = {shard.table: shard for shard in plan.shards[rank]}
    first = rank // linked * linked
    near = {s.table for shards in plan.shards[first : first + linked] for s in shards}
    count = range(len(tables))
    asked = [_asked_of(tables[n], placement.tables[n].dtype, n, batch) for n in count]
    uses = [TableUse() for _ in count]
    beyond: dict[int, NicTable | None] = dict(enumerate(asked))
    if REMOTE in caches:
        elsewhere = {n: asked[n] for n in count if _has(placement, n, REMOTE) and n not in near}
        elsewhere = elsewhere or {n: asked[n] for n in count if _has(placement, n, REMOTE)}
        found = _found(elsewhere, caches[REMOTE], batch, order)
        for number in (n for n in count if _has(placement, n, REMOTE)):
            place = _place_of(number, elsewhere)
            uses[number] = TableUse(
                asked_frac=1.0 - float(found.hit_frac[place]),
                answered_frac=1.0 - float(found.bags_hit_frac[place]),
                left_frac=1.0 - float(found.hit_frac[place]),
                remote_rows=found.held_rows(place, asked[number].lookups * ranks),
            )
            beyond[number] = found.missed[place]
    coming = {
        number: _part(table, shard, ranks - linked)
        for number, shard in mine.items()
        if (table := beyond[number]) is not None
    }
    cached = {n: table for n, table in coming.items() if _has(placement, n, LOCAL)}
    if LOCAL in caches and cached:
        found = _found(cached, caches[LOCAL], batch * (ranks - linked), OrderOf((), 0.0))
        for place, number in enumerate(cached):
            left = uses[number].left_frac * (1.0 - float(found.hit_frac[place]))
            changed = found.held_rows(place, asked[number].lookups * ranks / mine[number].parts)
            uses[number] = replace(uses[number], left_frac=left, local_rows=changed)
            missed = found.missed[place]
            if missed is None:
                del coming[number]
            else:
                coming[number] = missed
    for number, table in coming.items():
        rows = float(table.popularity.distinct_rows(table.lookups))
        uses[number] = replace(uses[number], left_rows=rows)
    return AdapterUse(tuple(uses), order)


def _has(placement: Placement, number: int, at: str) -> bool:
    return any(placement.cache(name).at == at for name in placement.tables[number].caches)


def _asked_of(table: Table, dtype: str, number: int, batch: int) -> NicTable:
    """One table as the samples of one rank look it up."""
    return NicTable(
        table.popularity(),
        table.lookups(batch),
        float(row_bytes(dtype, table.dim)),
        table.pooling,
        bool(table.key_rows),
        f"tables[{number}]",
    )


def _place_of(number: int, elsewhere: Mapping[int, NicTable]) -> int:
    """Where a table is among those that were asked for; of one's own, the one next to it."""
    numbers = list(elsewhere)
    if number in elsewhere:
        return numbers.index(number)
    return min(range(len(numbers)), key=lambda place: abs(numbers[place] - number))


def _part(table: NicTable, shard: Shard, requesters: int) -> NicTable:
    """What so many requesters ask of one part of a table, of whose lookups each leaves `table`."""
    popularity = table.popularity if shard.parts == 1 else table.popularity.part(1 / shard.parts)
    lookups = table.lookups * requesters / shard.parts
    return replace(table, popularity=popularity, lookups=lookups)


def _found(
    tables: Mapping[int, NicTable], cache: RowCache, queries: int, order: OrderOf
) -> NicFound:
    load = NicLoad(tuple(tables.values()), cache.capacity_bytes, queries, cache.policy, order.reuse)
    found = found_in(load, cache.hits_by)
    return by_bags(found) if cache.whole_bags else found
