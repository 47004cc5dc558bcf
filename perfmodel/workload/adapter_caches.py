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

from perfmodel.embedding import Placement, RowCache, draw_lookups
from perfmodel.embedding.popularity import Popularity
from perfmodel.embedding.reorder import MAX_QUERIES, Queries
from perfmodel.errors import WorkloadError
from perfmodel.ops.dtypes import row_bytes
from perfmodel.workload.adapter_hits import (
    AS_THEY_COME,
    NicHits,
    NicLoad,
    NicTable,
    in_order,
    measured_reuse,
    nic_hits,
    whole_bag_hits,
)
from perfmodel.workload.sharding import Plan, Shard
from perfmodel.workload.step import Run
from perfmodel.workload.tables import Table

SAMPLED_LOOKUPS, MAX_SAMPLED = 60_000, 1024
"""Of a drawn sample: lookups, and queries at most."""


@dataclass(frozen=True)
class QueryOrder:
    """Lookups per distinct row over independent ones, by window (`NicLoad.reuse`), and the pairs of
    lookups that finding the order of one batch compares."""

    reuse: tuple[tuple[float, float], ...]
    pairs: float


@lru_cache(maxsize=256)
def query_order(tables: tuple[Table, ...], batch: int, order: str) -> QueryOrder:
    """`batch` queries of `tables` in `order`: measured on as many of them as can be drawn quickly.

    Lookups are independent but where tables' bags come by key; then rows come together.
    """
    keyed = any(table.key_rows for table in tables)
    if order == AS_THEY_COME and not keyed:
        return QueryOrder((), 0.0)
    each = sum(table.pooling for table in tables)
    queries = int(np.clip(SAMPLED_LOOKUPS / each, 2, min(batch, MAX_SAMPLED)))
    drawn = drawn_queries(tables, queries)
    reuse = measured_reuse(in_order([drawn], order)[0], joined_popularity(tables))
    pairs = 0.0 if order == AS_THEY_COME else sum(_pairs(table, batch) for table in tables)
    return QueryOrder(reuse, pairs)


def drawn_queries(tables: tuple[Table, ...], queries: int, *, seed: int = 0) -> Queries:
    """So many queries of all `tables`, rows of different tables apart; whole bags of mean size."""
    rows, owners, first = [], [], 0
    for number, table in enumerate(tables):
        bag = max(round(table.pooling), 1)
        if table.key_rows:
            keys = draw_lookups(Table(table.key_rows, 1, 1, table.alpha).popularity(), queries)
            places = np.repeat(keys, bag) * bag + np.tile(np.arange(bag), queries)
            generator = np.random.default_rng([seed, number])
            drawn = places * int(generator.integers(1, 1 << 30) * 2 + 1) % table.rows
        else:
            drawn = draw_lookups(table.popularity(), queries * bag, seed=seed + number)
        rows.append(drawn + first)
        owners.append(np.repeat(np.arange(queries), bag))
        first += table.rows
    order = np.argsort(np.concatenate(owners), kind="stable")
    lengths = np.bincount(np.concatenate(owners), minlength=queries)
    return Queries(np.concatenate([[0], np.cumsum(lengths)]), np.concatenate(rows)[order])


def joined_popularity(tables: tuple[Table, ...]) -> Popularity:
    """All tables as one, each looked up as often as it is."""
    total = sum(table.pooling for table in tables)
    rows = np.concatenate([table.popularity().rows for table in tables])
    shares = [table.popularity().share * (table.pooling / total) for table in tables]
    return Popularity(rows, np.concatenate(shares))


def _pairs(table: Table, batch: int) -> float:
    """Expected squares of how often each row is looked up, of rows that 2 to so many queries do."""
    popularity = table.popularity()
    mean = popularity.chance * table.lookups(batch)
    times = np.arange(1.0, MAX_QUERIES + 1)
    log_factorial = np.cumsum(np.log(times))
    log_chance = np.outer(times, np.log(np.maximum(mean, 1e-300))) - mean - log_factorial[:, None]
    squares = np.where(times > 1, times**2, 0.0) @ np.exp(log_chance)
    return float(np.dot(squares, popularity.rows))


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
    order: QueryOrder
    message_bytes: float = 4096.0
    bus_crossings: float = 1.0
    """Of what goes to the device: one, or by way of the host's memory two."""

    def messages(self, run: Run, sent_bytes: float) -> float:
        """Of so many bytes to or from other nodes' ranks: at least one per rank."""
        return max(sent_bytes / self.message_bytes, float(run.ranks - run.linked))

    def sent_lookups(self, run: Run) -> list[int]:
        """Indices of the own samples to each rank; of a training step all, which updates need."""
        return [
            round(sum(self._asked(run, shard, is_across_network(run, rank)) for shard in shards))
            for rank, shards in enumerate(run.plan.shards)
        ]

    def received_split(self, run: Run) -> list[int]:
        """Indices of each rank's samples for the own shards."""
        own = run.plan.shards[run.rank]
        return [
            round(sum(self._asked(run, shard, is_across_network(run, rank)) for shard in own))
            for rank in range(run.ranks)
        ]

    def answered_fracs(self, run: Run) -> tuple[float, ...]:
        """Per rank, the share of its pooled rows for others that it sends."""
        answered = []
        for shards in run.plan.shards:
            dims = [shard.of(run.workload.tables).dim for shard in shards]
            kept = [self.tables[shard.table].answered_frac for shard in shards]
            answered.append(float(np.average(kept, weights=dims)) if dims else 1.0)
        return tuple(answered)

    def _asked(self, run: Run, shard: Shard, is_remote: bool) -> float:
        lookups = shard.of(run.workload.tables).lookups(run.batch)
        spared = is_remote and not run.train
        return lookups * (self.tables[shard.table].asked_frac if spared else 1.0)


def is_across_network(run: Run, rank: int) -> bool:
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
    order = query_order(tables, batch, orders.pop())
    mine = {shard.table: shard for shard in plan.shards[rank]}
    count = range(len(tables))
    asked = [_asked_of(tables[n], placement.tables[n].dtype, n, batch) for n in count]
    uses = [TableUse() for _ in count]
    beyond: dict[int, NicTable | None] = dict(enumerate(asked))
    if REMOTE in caches:
        views = _views(tables, placement, plan, batch, ranks, linked)
        own = views[rank // linked]
        for number in (n for n in count if _has(placement, n, REMOTE)):
            theirs = [view for view in views if number in view[0]]
            seen = [own] if number in own[0] else theirs or [own]
            # of a table that lies partly in every group, the place of the one next to it
            nearest = [min(places, key=lambda n: abs(n - number)) for places, _ in seen]
            parts = [(hits, places[n]) for (places, hits), n in zip(seen, nearest, strict=True)]
            left = 1.0 - float(np.mean([hits.hit_frac[place] for hits, place in parts]))
            bags = float(np.mean([hits.bags_hit_frac[place] for hits, place in parts]))
            changed = asked[number].lookups * ranks
            held = float(np.mean([hits.held_rows(place, changed) for hits, place in parts]))
            uses[number] = TableUse(left, 1.0 - bags, left, remote_rows=held)
            hits, place = parts[0]
            beyond[number] = hits.missed[place]
    coming = {
        number: _part(table, shard, ranks - linked)
        for number, shard in mine.items()
        if (table := beyond[number]) is not None
    }
    cached = {n: table for n, table in coming.items() if _has(placement, n, LOCAL)}
    if LOCAL in caches and cached:
        hits = _found(cached, caches[LOCAL], batch * (ranks - linked), QueryOrder((), 0.0))
        for place, number in enumerate(cached):
            left = uses[number].left_frac * (1.0 - float(hits.hit_frac[place]))
            changed = hits.held_rows(place, asked[number].lookups * ranks / mine[number].parts)
            uses[number] = replace(uses[number], left_frac=left, local_rows=changed)
            missed = hits.missed[place]
            if missed is None:
                del coming[number]
            else:
                coming[number] = missed
    for number, table in coming.items():
        rows = float(table.popularity.distinct_rows(table.lookups))
        uses[number] = replace(uses[number], left_rows=rows)
    least = min(cache.message_bytes for cache in caches.values())
    crossings = 2.0 - min(cache.host_bypass for cache in caches.values())
    return AdapterUse(tuple(uses), order, least, crossings)


def _has(placement: Placement, number: int, at: str) -> bool:
    return any(placement.cache(name).at == at for name in placement.tables[number].caches)


def _asked_of(table: Table, dtype: str, number: int, batch: int) -> NicTable:
    """One table as the samples of one rank look it up."""
    return NicTable(
        popularity=table.popularity(),
        lookups=table.lookups(batch),
        row_bytes=float(row_bytes(dtype, table.dim)),
        pooling=table.pooling,
        together=bool(table.key_rows),
        name=f"tables[{number}]",
    )


View = tuple[dict[int, int], NicHits]
"""Places of others' tables in what the remote caches of one group of linked ranks find of them."""


@lru_cache(maxsize=8)
def _views(
    tables: tuple[Table, ...], placement: Placement, plan: Plan, batch: int, ranks: int, linked: int
) -> tuple[View, ...]:
    """That of each group: what a group asks of another one's tables is what that one is asked;
    groups that ask equal tables find the same in them."""
    cache = next(cache for cache in placement.caches if cache.at == REMOTE)
    order = query_order(tables, batch, cache.order)
    cached = [n for n in range(len(tables)) if _has(placement, n, REMOTE)]
    asked = {n: _asked_of(tables[n], placement.tables[n].dtype, n, batch) for n in cached}
    made: dict[tuple[tuple[Table, str], ...], NicHits] = {}
    views = []
    for first in range(0, ranks, linked):
        near = {shard.table for shards in plan.shards[first : first + linked] for shard in shards}
        numbers = tuple(n for n in cached if n not in near) or tuple(cached)
        alike = tuple((tables[n], placement.tables[n].dtype) for n in numbers)
        if alike not in made:
            made[alike] = _found({n: asked[n] for n in numbers}, cache, batch, order)
        views.append(({n: place for place, n in enumerate(numbers)}, made[alike]))
    return tuple(views)


def _part(table: NicTable, shard: Shard, requesters: int) -> NicTable:
    """What so many requesters ask of one part of a table, of whose lookups each leaves `table`."""
    popularity = table.popularity if shard.parts == 1 else table.popularity.part(1 / shard.parts)
    lookups = table.lookups * requesters / shard.parts
    return replace(table, popularity=popularity, lookups=lookups)


def _found(
    tables: Mapping[int, NicTable], cache: RowCache, queries: int, order: QueryOrder
) -> NicHits:
    """What a cache finds of `tables`; more room than all their rows take is of no use."""
    asked = tuple(tables.values())
    held_bytes = sum(table.popularity.total_rows * table.row_bytes for table in asked)
    capacity_bytes = min(cache.capacity_bytes, held_bytes)
    load = NicLoad(asked, capacity_bytes, queries, cache.policy, order.reuse)
    hits = nic_hits(load, cache.hits_by)
    return whole_bag_hits(hits) if cache.whole_bags else hits
