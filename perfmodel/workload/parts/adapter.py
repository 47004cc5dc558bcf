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

    Of tables that this rank holds, these are the others' lookups on average. `asked_frac`: of these
    lookups, those that the requester's remote cache leaves; `answered_frac`: of the bags, those
    that then need an answer; `left_frac`: of the lookups, those that the owner's local cache leaves
    to its device. `remote_rows` and `local_rows`: distinct rows in these caches that a batch of all
    ranks changes, of the whole table.
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
    count = range(len(tables))
    asked = [_asked_of(tables[n], placement.tables[n].dtype, n, batch) for n in count]
    uses = [TableUse() for _ in count]
    beyond: dict[int, NicTable | None] = dict(enumerate(asked))
    if REMOTE in caches:
        views = _views(tables, placement, plan, batch, ranks, linked)
        own = views[rank // linked]
        for number in (n for n in count if _has(placement, n, REMOTE)):
            theirs = [view for view in views if number in view.places]
            seen = [own] if number in own.places else theirs or [own]
            parts = [(view.found, view.place_of(number)) for view in seen]
            left = 1.0 - float(np.mean([found.hit_frac[place] for found, place in parts]))
            bags = float(np.mean([found.bags_hit_frac[place] for found, place in parts]))
            changed = asked[number].lookups * ranks
            held = float(np.mean([found.held_rows(place, changed) for found, place in parts]))
            uses[number] = TableUse(left, 1.0 - bags, left, remote_rows=held)
            found, place = parts[0]
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


@dataclass(frozen=True, eq=False)
class _View:
    """What the remote caches of one group of linked ranks find of others' tables, and the places of
    these tables in it."""

    places: Mapping[int, int]
    found: NicFound

    def place_of(self, number: int) -> int:
        """Of a table; of one that lies partly in every group, the one next to it."""
        near = min(self.places, key=lambda other: abs(other - number))
        return self.places[near]


@lru_cache(maxsize=8)
def _views(
    tables: tuple[Table, ...],
    placement: Placement,
    plan: Plan,
    batch: int,
    ranks: int,
    linked: int,
) -> tuple[_View, ...]:
    """That of each group: what a group asks of another one's tables is what that one is asked.

    Groups that ask tables that are alike find the same in them.
    """
    cache = next(cache for cache in placement.caches if cache.at == REMOTE)
    order = order_of(tables, batch, cache.order)
    cached = [n for n in range(len(tables)) if _has(placement, n, REMOTE)]
    asked = {n: _asked_of(tables[n], placement.tables[n].dtype, n, batch) for n in cached}
    made: dict[tuple[tuple[Table, str], ...], NicFound] = {}
    views = []
    for first in range(0, ranks, linked):
        near = {shard.table for shards in plan.shards[first : first + linked] for shard in shards}
        numbers = tuple(n for n in cached if n not in near) or tuple(cached)
        alike = tuple((tables[n], placement.tables[n].dtype) for n in numbers)
        if alike not in made:
            made[alike] = _found({n: asked[n] for n in numbers}, cache, batch, order)
        views.append(_View({n: place for place, n in enumerate(numbers)}, made[alike]))
    return tuple(views)


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
