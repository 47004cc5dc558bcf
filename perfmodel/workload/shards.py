"""Which rank holds which table, or which part of one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from heapq import heappop, heappush

from perfmodel.errors import WorkloadError
from perfmodel.workload.model import Workload
from perfmodel.workload.tables import Table

FP32_BYTES = 4
IN_TURN = ("pytorch", "reference", "fbgemm")
"""Implementations that deal out tables one after the other, without regard to their size."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One of `parts` equal row-wise parts of table number `table`; it gets as many lookups."""

    table: int
    parts: int = 1

    def of(self, tables: tuple[Table, ...]) -> Table:
        """The shard as a table."""
        whole = tables[self.table]
        if self.parts == 1:
            return whole
        rows, pooling = -(-whole.rows // self.parts), whole.pooling / self.parts
        return replace(whole, rows=rows, pooling=pooling)


@dataclass(frozen=True)
class Plan:
    """Per rank the shards that it holds; `replicated` tables every rank holds."""

    shards: tuple[tuple[Shard, ...], ...]
    replicated: tuple[int, ...] = ()


def plan(workload: Workload, ranks: int) -> Plan:
    """How `workload.implementation.sharding` lays the tables out over `ranks`.

    `table_wise`: whole tables. `row_wise`: a part of every table on every rank. `balanced`: tables
    with more than their share of the lookups in parts. Tables of at most `data_parallel_max_bytes`
    are replicated. Raises `WorkloadError` where whole tables are too few for the ranks.
    """
    software = workload.implementation
    numbers = range(len(workload.tables))
    replicated = tuple(
        number
        for number in numbers
        if ranks > 1 and _bytes(workload.tables[number]) <= software.data_parallel_max_bytes
    )
    split = [number for number in numbers if number not in set(replicated)]
    if software.sharding == "row_wise" and ranks > 1:
        every = tuple(Shard(number, ranks) for number in split)
        return Plan((every,) * ranks, replicated)
    shards = [Shard(number) for number in split]
    if software.sharding == "balanced":
        shards = _in_parts(workload, split, ranks)
    elif len(split) < ranks:
        raise WorkloadError(
            f"{workload.name}: {len(split)} tables cannot be shared out whole among {ranks} ranks: "
            'set implementation.sharding to "row_wise" or "balanced"'
        )
    if software.name in IN_TURN:
        return Plan(tuple(tuple(shards[rank::ranks]) for rank in range(ranks)), replicated)
    return Plan(_dealt(workload, shards, ranks), replicated)


def _in_parts(workload: Workload, numbers: list[int], ranks: int) -> list[Shard]:
    """A part for each share of the lookups that a table has, at most one per rank."""
    total = sum(_work(workload.tables[number]) for number in numbers)
    found = []
    for number in numbers:
        parts = round(_work(workload.tables[number]) * ranks / total)
        parts = min(max(parts, 1), ranks, max(workload.tables[number].rows, 1))
        found += [Shard(number, parts)] * parts
    return found


def _dealt(workload: Workload, shards: list[Shard], ranks: int) -> tuple[tuple[Shard, ...], ...]:
    """The largest first, each to the rank with the least so far that has no part of its table."""
    held: list[list[Shard]] = [[] for _ in range(ranks)]
    loads = [(0.0, rank) for rank in range(ranks)]
    for shard in sorted(shards, key=lambda it: -_work(it.of(workload.tables))):
        passed = []
        while shard in held[loads[0][1]]:
            passed.append(heappop(loads))
        load, rank = heappop(loads)
        held[rank].append(shard)
        heappush(loads, (load + _work(shard.of(workload.tables)), rank))
        for entry in passed:
            heappush(loads, entry)
    return tuple(tuple(sorted(own, key=lambda it: it.table)) for own in held)


def _work(table: Table) -> float:
    """Elements read and sent per sample."""
    return (table.pooling + 1) * table.dim


def _bytes(table: Table) -> int:
    return table.rows * table.dim * FP32_BYTES


def heaviest_rank(workload: Workload, ranks: int) -> int:
    """The rank whose tables are read and sent most, the first of several; `WorkloadError`."""
    shards = plan(workload, ranks).shards
    work = [sum(_work(shard.of(workload.tables)) for shard in own) for own in shards]
    return work.index(max(work))
