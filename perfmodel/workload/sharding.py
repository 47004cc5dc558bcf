"""Which rank holds which table, or which part of one; the placement that this means.

HugeCTR's planner gives tables, or parts of them, to equal buckets so that the busiest has least
work: rows looked up per sample, and `table_cost` more for each table, whose pooled rows are
exchanged. Tables are parted in two again and again, the one with the largest part first, and the
best layout of all these is taken. Source: the planner of NVIDIA's MLPerf DLRM-DCNv2 submissions
(samples/dlrm/sharding of NVIDIA-Merlin/HugeCTR), in own words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from heapq import heappop, heappush
from itertools import chain
from math import inf
from typing import Any

from perfmodel.embedding import Placement, Sharding, TablePlacement
from perfmodel.embedding.popularity import Scattered, busiest_load
from perfmodel.errors import WorkloadError
from perfmodel.workload.model import Workload
from perfmodel.workload.settings import IMPLEMENTATIONS
from perfmodel.workload.tables import FP32_BYTES, STATES, Table, row_wise_part

ROUNDS = 20
"""How often the largest part is parted, at most."""
CAPACITY_BYTES = 60e9
"""Of one GPU, for tables with their optimizer state: the planner's default."""
Layout = list[list[int]]
"""Per bucket the numbers of the tables of which it has a part."""


def planned(
    tables: Mapping[int, Table],
    buckets: int,
    *,
    table_cost: float,
    row_bytes: float,
    capacity_bytes: float,
) -> Layout:
    """Per bucket the tables that it has a part of.

    `row_bytes` is what a row takes with its optimizer state. Where no layout fits, every bucket
    has a part of every table.
    """
    parts = dict.fromkeys(tables, 1)
    best: tuple[float, Layout] | None = None
    for _ in range(ROUNDS):
        work = {number: tables[number].pooling / parts[number] for number in tables}
        every = [
            (number, work[number] + table_cost, tables[number].rows / parts[number])
            for number in tables
            for _ in range(parts[number])
        ]
        held, stuck = packed(every, buckets, capacity_bytes / row_bytes)
        if stuck is None:
            busiest = max(sum(work[number] + table_cost for number in own) for own in held)
            if best is None or busiest < best[0]:
                best = busiest, held
        by_work = sorted(work, key=lambda number: -work[number])
        candidates = [stuck] if stuck is not None else by_work
        split = next((number for number in candidates if 2 * parts[number] <= buckets), None)
        if split is None:
            break
        parts[split] *= 2
    return best[1] if best else [list(tables) for _ in range(buckets)]


def packed(
    parts: Sequence[tuple[int, float, float]], buckets: int, capacity_rows: float = inf
) -> tuple[Layout, int | None]:
    """Of (table, work, rows) the one with most work first, each to the bucket with least that has
    room and no part of its table; with the first table that no bucket can take."""
    held: Layout = [[] for _ in range(buckets)]
    loads, rows = [(0.0, bucket) for bucket in range(buckets)], [0.0] * buckets
    for table, work, size in sorted(parts, key=lambda part: -part[1]):
        passed = []
        while loads and (
            held[loads[0][1]][-1:] == [table] or rows[loads[0][1]] + size > capacity_rows
        ):
            passed.append(heappop(loads))
        if not loads:
            return held, table
        load, bucket = heappop(loads)
        held[bucket].append(table)
        rows[bucket] += size
        for entry in (*passed, (load + work, bucket)):
            heappush(loads, entry)
    return held, None


LINKED_TABLE_COST, REMOTE_TABLE_COST = 7 / 4, 67 / 4
"""Work of a table's exchange, in rows looked up: between GPUs that links join, between nodes.

Source: MEM_COMM_BW_RATIO of the submissions' configurations for one DGX H100 and for eight, over
the planner's default MEM_COMM_WORK_RATIO.
"""
ROUND_ROBIN = ("pytorch", "reference", "fbgemm")
"""Implementations that deal out tables one after the other, without regard to their size."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One of `parts` equal row-wise parts of table number `table`, with the lookups of its rows:
    those of a `block`, or any, with `excess_frac` more lookups than the mean part has; or one of
    `columns` equal column-wise parts, each with all lookups."""

    table: int
    parts: int = 1
    columns: int = 1
    block: int | None = None
    excess_frac: float = 0.0

    def of(self, tables: tuple[Table, ...]) -> Table:
        """The shard as a table."""
        whole = tables[self.table]
        if self.parts > 1:
            return row_wise_part(whole, self.parts, self.block, self.excess_frac)
        return replace(whole, dim=whole.dim // self.columns) if self.columns > 1 else whole


@dataclass(frozen=True)
class Plan:
    """Per rank the shards that it holds; `replicated` tables every rank holds."""

    shards: tuple[tuple[Shard, ...], ...]
    replicated: tuple[int, ...] = ()

    @cached_property
    def shard_of(self) -> dict[int, Shard]:
        """How each table that is not replicated is parted, by its number."""
        return {shard.table: shard for own in self.shards for shard in own}

    def of_each(self, value: Callable[[Shard], Any]) -> list[list[Any]]:
        """Per rank the `value` of each shard that it has, which equal shards share."""
        values = {shard: value(shard) for shard in set(chain.from_iterable(self.shards))}
        return [[values[shard] for shard in own] for own in self.shards]


@lru_cache(maxsize=64)
def plan(workload: Workload, ranks: int, linked: int | None = None) -> Plan:
    """The plan that the workload's own placement means. Raises as `own_placement`."""
    placement = own_placement(workload, ranks, linked)
    hashed = IMPLEMENTATIONS[workload.implementation.name].hashes_rows
    return plan_of_placement(workload, placement, ranks, linked, hashed=hashed)


@lru_cache(maxsize=64)
def own_placement(workload: Workload, ranks: int, linked: int | None = None) -> Placement:
    """Where `workload.implementation.sharding` lays the tables out over `ranks`, all of them in
    device memory.

    `table_wise`: whole tables. `row_wise`: a part of every table on every rank; `hybrid` as well,
    but for the rows that are frequent. `balanced`: tables with more than their share of the lookups
    in parts. `planned`: see `planned`; where links join `linked` ranks each, tables go to these
    groups.
    Tables of at most `data_parallel_max_bytes` are replicated, of several groups those of at most
    `remote_data_parallel_max_bytes`.
    Where tables are fewer than ranks, some ranks have none. Raises `WorkloadError` where what deals
    out whole tables is asked for parts.
    """
    software, scheme = workload.implementation, workload.implementation.sharding
    near = min(linked or ranks, ranks)
    deals_out = software.name in ROUND_ROBIN
    if deals_out and ranks > 1 and scheme != "table_wise":
        raise WorkloadError(
            f'{workload.name}: implementation "{software.name}" has whole tables only, none in '
            f'parts: set implementation.sharding to "table_wise", or implementation.name to '
            '"torchrec"'
        )
    most = software.remote_data_parallel_max_bytes if near < ranks else 0
    most = 0 if deals_out else most or software.data_parallel_max_bytes
    every, tables, dtype = tuple(range(ranks)), workload.tables, software.table_precision
    sizes = [table.rows * table.dim * FP32_BYTES for table in tables]
    split = [number for number, size in enumerate(sizes) if ranks == 1 or size > most]
    if scheme == "planned":
        held = _planned(workload, split, ranks, near)
    elif scheme in ("row_wise", "hybrid"):
        held = [[at for at in split if rank < tables[at].rows] for rank in every]
    elif deals_out:
        held = [split[rank::ranks] for rank in every]
    else:
        parts = _parts(workload, split, ranks) if scheme == "balanced" else dict.fromkeys(split, 1)
        works = [
            (number, _work(Shard(number, count).of(tables)), 0.0)
            for number, count in parts.items()
            for _ in range(count)
        ]
        held, _ = packed(works, ranks)
    placed = {
        number: TablePlacement("data_parallel", every, dtype=dtype) for number in range(len(tables))
    }
    for number in split:
        ranks_of = tuple(rank for rank, own in enumerate(held) if number in own)
        kind: Sharding = "row_wise" if len(ranks_of) > 1 else "table_wise"
        placed[number] = TablePlacement(kind, ranks_of, dtype=dtype)
    return Placement(tuple(placed.values()))


@lru_cache(maxsize=64)
def plan_of_placement(
    workload: Workload,
    placement: Placement,
    ranks: int,
    linked: int | None = None,
    *,
    hashed: bool = False,
) -> Plan:
    """The plan that a `placement` means on `ranks`, of which links join `linked` each; `hashed`:
    row-wise parts are no blocks.

    Raises `WorkloadError` that names the table for a placement of other tables, or one that these
    ranks cannot hold.
    """
    near = min(linked or ranks, ranks)
    if len(placement.tables) != len(workload.tables):
        raise WorkloadError(
            f"placement: it is of {len(placement.tables)} tables, "
            f"{workload.name} has {len(workload.tables)}"
        )
    held: list[list[Shard]] = [[] for _ in range(ranks)]
    replicated, holders = [], dict[int, Sequence[int]]()
    for number, about in enumerate(placement.tables):
        _check(number, about, workload.tables[number], ranks, near)
        if about.sharding == "data_parallel":
            replicated.append(number)
            continue
        count = len(about.ranks)
        by_column = about.sharding == "column_wise"
        shard = Shard(number, columns=count) if by_column else Shard(number, parts=count)
        if shard.parts > 1:
            holders[number] = about.ranks
        for rank in about.ranks:
            held[rank].append(shard)
    return Plan(_cut(workload.tables, held, holders, hashed=hashed), tuple(replicated))


def _cut(
    tables: tuple[Table, ...],
    held: Sequence[Sequence[Shard]],
    holders: Mapping[int, Sequence[int]],
    *,
    hashed: bool = False,
) -> tuple[tuple[Shard, ...], ...]:
    """What each rank has `held`, with the rows that fall to row-wise parts; `holders`: of each
    table that is in such, its ranks in order.

    Rows are cut in blocks, unless they are `hashed`: of those in the order of popularity the first
    rank has the most popular ones. Else they fall by chance: of the ranks that have most in the
    mean, the first stands for the busiest, and the others have what it leaves.
    """
    shard_of = {shard.table: shard for own in held for shard in own}
    block, spread = dict[tuple[int, int], Shard](), dict[int, Scattered]()
    for number, ranks in holders.items():
        table, part = tables[number], shard_of[number]
        if table.ids == "by_popularity" and not hashed:
            block |= {(number, rank): replace(part, block=at) for at, rank in enumerate(ranks)}
        elif len((popularity := table.popularity()).rows) > 1:
            spread[number] = Scattered(popularity, tuple(ranks), table.pooling * table.dim)
    cut = [[block.get((it.table, rank), it) for it in own] for rank, own in enumerate(held)]
    if spread:
        every = {shard: shard.of(tables) for shard in set(chain.from_iterable(cut))}
        looked_up = {shard: part.pooling * part.dim for shard, part in every.items()}
        mean = tuple(sum(map(looked_up.__getitem__, own)) for own in cut)
        busiest = max(
            {at: None for each in spread.values() for at in each.ranks}, key=mean.__getitem__
        )
        own = {number: each for number, each in spread.items() if busiest in each.ranks}
        excess = busiest_load(tuple(spread.values()), mean) - mean[busiest]
        variance = max(sum(each.variance for each in own.values()), 1e-300)
        first, other = dict[int, Shard](), dict[int, Shard]()
        for number, each in own.items():
            parts = len(each.ranks)
            # No rank has all lookups: the others are left some, of which distinct rows follow.
            most = 0.99 * (parts - 1.0)
            more = min(excess * each.variance / variance * parts / each.weight, most)
            first[number] = replace(shard_of[number], excess_frac=more)
            other[number] = replace(shard_of[number], excess_frac=-more / (parts - 1.0))
        for rank, shards in enumerate(cut):
            at_rank = first if rank == busiest else other
            cut[rank] = [at_rank.get(it.table, it) for it in shards]
    return tuple(map(tuple, cut))


@lru_cache(maxsize=4096)
def busiest_part(table: Table, parts: int) -> Table:
    """Of a table in row-wise parts the busiest rank's, were it the only table."""
    alone = [[Shard(0, parts)]] * parts
    return _cut((table,), alone, {0: range(parts)})[0][0].of((table,))


def _check(number: int, about: TablePlacement, table: Table, ranks: int, linked: int) -> None:
    where = f"placement: tables[{number}]"
    count = len(about.ranks)
    if max(about.ranks) >= ranks:
        raise WorkloadError(f"{where}: rank {max(about.ranks)}, of {ranks} ranks from 0")
    if about.hot_rows > table.rows:
        raise WorkloadError(f"{where}: {about.hot_rows} hot rows of {table.rows}")
    if about.sharding == "data_parallel" and count != ranks:
        raise WorkloadError(f"{where}: data_parallel on {count} of {ranks} ranks")
    if about.sharding == "column_wise" and table.dim % count:
        raise WorkloadError(f"{where}: {table.dim} columns cannot be in {count} equal parts")
    if about.sharding in ("row_wise", "table_row_wise") and table.rows < count:
        raise WorkloadError(f"{where}: {table.rows} rows cannot be in {count} parts")
    if about.sharding == "table_row_wise" and len({rank // linked for rank in about.ranks}) > 1:
        raise WorkloadError(f"{where}: table_row_wise beyond the {linked} ranks that links join")


def _planned(workload: Workload, numbers: list[int], ranks: int, linked: int) -> Layout:
    """Groups of linked ranks are what is planned for where there are several, else ranks."""
    groups = ranks // linked
    within = linked if groups > 1 else 1
    held = planned(
        {number: workload.tables[number] for number in numbers},
        ranks // within,
        table_cost=REMOTE_TABLE_COST if groups > 1 else LINKED_TABLE_COST,
        row_bytes=workload.dim * FP32_BYTES * (1 + STATES[workload.training.table_optimizer]),
        capacity_bytes=CAPACITY_BYTES * within,
    )
    return [own for own in held for _ in range(within)]


def _parts(workload: Workload, numbers: list[int], ranks: int) -> dict[int, int]:
    """A part for each share of the lookups that a table has, at most one per rank."""
    tables = {number: workload.tables[number] for number in numbers}
    total = sum(map(_work, tables.values()))
    return {
        number: min(max(round(_work(table) * ranks / total), 1), ranks, max(table.rows, 1))
        for number, table in tables.items()
    }


def _work(table: Table) -> float:
    """Elements read and sent per sample."""
    return (table.pooling + 1) * table.dim
