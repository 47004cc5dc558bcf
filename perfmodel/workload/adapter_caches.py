"""What caches of rows in network adapters leave of a step's lookups and exchanges.

A rank's adapter looks for the keys of its own samples that other ranks hold in its remote cache;
the rest go out. What comes in is looked for in its local cache; the rest goes to the device. Both
add rows up: a bag whose lookups were all found by the requester needs no answer, and a partial sum
of the local cache joins the device's on its way out. A trained row is written to the adapters of
all other ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from perfmodel.embedding import Placement, RowCache, draw_lookups
from perfmodel.embedding.index_streams import MAX_QUERIES, Queries, reordered
from perfmodel.embedding.popularity import Popularity
from perfmodel.ops.dtypes import row_bytes
from perfmodel.workload.adapter_hits import NicHits, NicLoad, NicTable, Reuse, nic_hits
from perfmodel.workload.sharding import Plan, Shard
from perfmodel.workload.step import Run
from perfmodel.workload.tables import Table

AS_THEY_COME = "as_they_come"  # queries that are put in no order
WINDOWS = (1, 4, 16, 64, 256, 1024)
"""Consecutive queries in which reuse is measured (those that a batch has)."""
SAMPLED_LOOKUPS, MAX_SAMPLED = 60_000, 1024  # of a drawn sample: lookups, and queries at most


@lru_cache(maxsize=256)
def query_order(tables: tuple[Table, ...], batch: int, order: str) -> tuple[Reuse, float]:
    """Reuse of `batch` queries of `tables` in `order`, measured on as many as can be drawn quickly;
    pairs of lookups that finding the order compares.

    Lookups are independent but where tables' bags come by key; then rows come together.
    """
    is_sorted = order != AS_THEY_COME
    if not is_sorted and not any(table.key_rows for table in tables):
        return (), 0.0
    total = sum(table.pooling for table in tables)
    drawn = drawn_queries(tables, int(np.clip(SAMPLED_LOOKUPS / total, 2, min(batch, MAX_SAMPLED))))
    if is_sorted:
        drawn = drawn.in_order(reordered(drawn)[0])
    rows = np.concatenate([table.popularity().rows for table in tables])
    shares = [table.popularity().share * (table.pooling / total) for table in tables]
    reuse = measured_reuse([drawn], Popularity(rows, np.concatenate(shares)))
    return reuse, sum(_pairs(table, batch) for table in tables) if is_sorted else 0.0


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


def measured_reuse(batches: Sequence[Queries], popularity: Popularity) -> Reuse:
    """Of `batches` of equal size whose rows are as popular as stated: lookups per distinct row
    within the windows that a batch has, over those of independent ones."""
    queries = len(batches[0])
    lookups = float(np.mean([len(each.rows) for each in batches])) / queries
    pairs = []
    for window in [*(each for each in WINDOWS if each < queries), queries]:
        reuse = float(np.mean([each.reuse(window) for each in batches]))
        alone = window * lookups / float(popularity.distinct_rows(window * lookups))
        pairs.append((float(window), reuse / alone))
    return tuple(pairs)


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
    to its device. `remote_rows`: distinct rows in remote caches that a batch of all ranks changes,
    of the whole table.
    """

    asked_frac: float = 1.0
    answered_frac: float = 1.0
    left_frac: float = 1.0
    left_rows: float = 0.0
    remote_rows: float = 0.0


@dataclass(frozen=True)
class AdapterUse:
    """Per table of the workload what the adapters find; `pairs` of lookups that putting a batch's
    queries in order compares. What goes to the device crosses the bus once, or by way of the host's
    memory twice (`bus_crossings`)."""

    tables: tuple[TableUse, ...]
    pairs: float
    message_bytes: float
    bus_crossings: float

    def messages(self, run: Run, sent_bytes: float) -> float:
        """Of so many bytes to or from other nodes' ranks: at least one per rank."""
        return max(sent_bytes / self.message_bytes, float(run.ranks - run.linked))

    def sent_lookups(self, run: Run) -> list[int]:
        """Indices of the own samples to each rank; of a training step all, which updates need."""
        return [
            round(sum(self._asked(run, shard, rank) for shard in shards))
            for rank, shards in enumerate(run.plan.shards)
        ]

    def received_split(self, run: Run) -> list[int]:
        """Indices of each rank's samples for the own shards."""
        own = run.plan.shards[run.rank]
        return [
            round(sum(self._asked(run, shard, rank) for shard in own)) for rank in range(run.ranks)
        ]

    def answered_fracs(self, run: Run) -> tuple[float, ...]:
        """Per rank, the share of its pooled rows for others that it sends."""
        answered = []
        for shards in run.plan.shards:
            dims = [shard.of(run.workload.tables).dim for shard in shards]
            kept = [self.tables[shard.table].answered_frac for shard in shards]
            answered.append(float(np.average(kept, weights=dims)) if dims else 1.0)
        return tuple(answered)

    def _asked(self, run: Run, shard: Shard, rank: int) -> float:
        lookups = shard.of(run.workload.tables).lookups(run.batch)
        spared = is_across_network(run, rank) and not run.train
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
    step = (run.workload.tables, run.placement, run.plan, run.batch, run.ranks, run.linked)
    return _use(*step, run.rank)


@lru_cache(maxsize=64)
def _use(
    tables: tuple[Table, ...],
    placement: Placement,
    plan: Plan,
    batch: int,
    ranks: int,
    linked: int,
    rank: int,
) -> AdapterUse:
    caches = {cache.at: cache for cache in placement.caches if cache.at in (LOCAL, REMOTE)}
    of_caches = list(caches.values())
    asked = _asked_of(tables, placement, batch)
    uses = [TableUse() for _ in tables]
    beyond: list[NicTable | None] = [*asked]
    if REMOTE in caches:
        views = _views(tables, placement, plan, batch, ranks, linked)
        own = views[rank // linked]
        for number in _cached_in(placement, REMOTE):
            theirs = [view for view in views if number in view]
            seen = [own] if number in own else theirs or [own]
            # of a table that lies partly in every group, the place of the one next to it
            found = [view[min(view, key=lambda n: abs(n - number))] for view in seen]
            changed = ranks * asked[number].lookups
            hit = float(np.mean([each.hit_frac for each in found]))
            bags = float(np.mean([each.bags_hit_frac for each in found]))
            rows = float(np.mean([each.held_rows(changed) for each in found]))
            uses[number] = TableUse(1.0 - hit, 1.0 - bags, 1.0 - hit, remote_rows=rows)
            beyond[number] = found[0].missed
    coming = {
        shard.table: _part(table, shard, ranks - linked)
        for shard in plan.shards[rank]
        if (table := beyond[shard.table]) is not None
    }
    cached = {n: coming[n] for n in _cached_in(placement, LOCAL) if n in coming}
    if LOCAL in caches and cached:
        found_here = _found(cached, caches[LOCAL], batch * (ranks - linked), ())
        for number, hits in found_here.items():
            left = uses[number].left_frac * (1.0 - hits.hit_frac)
            uses[number] = replace(uses[number], left_frac=left)
            if hits.missed is None:
                del coming[number]
            else:
                coming[number] = hits.missed
    for number, table in coming.items():
        rows = float(table.popularity.distinct_rows(table.lookups))
        uses[number] = replace(uses[number], left_rows=rows)
    return AdapterUse(
        tuple(uses),
        query_order(tables, batch, of_caches[0].order)[1],
        min(cache.message_bytes for cache in of_caches),
        2.0 - min(cache.host_bypass for cache in of_caches),
    )


def _cached_in(placement: Placement, at: str) -> list[int]:
    names = {cache.name for cache in placement.caches if cache.at == at}
    return [n for n, table in enumerate(placement.tables) if names & {*table.caches}]


@lru_cache(maxsize=8)
def _asked_of(tables: tuple[Table, ...], placement: Placement, batch: int) -> tuple[NicTable, ...]:
    """Each table as the samples of one rank look it up."""
    return tuple(
        NicTable(
            popularity=table.popularity(),
            lookups=table.lookups(batch),
            row_bytes=float(row_bytes(placed.dtype, table.dim)),
            pooling=table.pooling,
            together=bool(table.key_rows),
            name=f"tables[{number}]",
        )
        for number, (table, placed) in enumerate(zip(tables, placement.tables, strict=True))
    )


@lru_cache(maxsize=8)
def _views(
    tables: tuple[Table, ...], placement: Placement, plan: Plan, batch: int, ranks: int, linked: int
) -> tuple[dict[int, NicHits], ...]:
    """What the remote caches of each group of linked ranks find of others' tables: what a group
    asks of another one's is what that one is asked; equal tables are found equally."""
    cache = next(cache for cache in placement.caches if cache.at == REMOTE)
    reuse = query_order(tables, batch, cache.order)[0]
    asked = _asked_of(tables, placement, batch)
    cached = _cached_in(placement, REMOTE)
    made: dict[tuple[tuple[Table, str], ...], list[NicHits]] = {}
    views = []
    for first in range(0, ranks, linked):
        near = {shard.table for shards in plan.shards[first : first + linked] for shard in shards}
        numbers = [n for n in cached if n not in near] or cached
        alike = tuple((tables[n], placement.tables[n].dtype) for n in numbers)
        if alike not in made:
            found = _found({n: asked[n] for n in numbers}, cache, batch, reuse)
            made[alike] = list(found.values())
        views.append(dict(zip(numbers, made[alike], strict=True)))
    return tuple(views)


def _part(table: NicTable, shard: Shard, requesters: int) -> NicTable:
    """What so many requesters ask of one part of a table, of whose lookups each leaves `table`."""
    popularity = table.popularity if shard.parts == 1 else table.popularity.part(1 / shard.parts)
    lookups = table.lookups * requesters / shard.parts
    return replace(table, popularity=popularity, lookups=lookups)


def _found(
    tables: dict[int, NicTable], cache: RowCache, queries: int, reuse: Reuse
) -> dict[int, NicHits]:
    """What a cache finds of `tables`; more room than all their rows take is of no use."""
    held_bytes = sum(table.popularity.total_rows * table.row_bytes for table in tables.values())
    capacity_bytes = min(cache.capacity_bytes, held_bytes)
    load = NicLoad(tuple(tables.values()), capacity_bytes, queries, cache.policy, reuse)
    found = nic_hits(load, cache.hits_by, whole_bags=cache.whole_bags)
    return dict(zip(tables, found, strict=True))
