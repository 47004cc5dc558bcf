"""What a step asks of the tables of one tier, how row ops are recorded, and what caches find."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

import numpy as np

from perfmodel.base.registry import Registry
from perfmodel.embedding import RowCache, TablePlacement
from perfmodel.embedding.placement import NIC, STORAGE
from perfmodel.errors import WorkloadError
from perfmodel.ops.graph import Tensor
from perfmodel.ops.vocabulary.embedding import PART, WORKING_SETS
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.jagged import Jagged
from perfmodel.workload.sharding import Shard
from perfmodel.workload.step import Run
from perfmodel.workload.tables import Table, distinct_in_parts, row_bytes, state_bytes

POOLED, COLUMNS, REDUCED, WITHIN = "pooled", "columns", "reduced", "within"


@dataclass(frozen=True)
class Group:
    """Tables, or parts of them, of one rank whose rows are reached alike.

    `tables` are what this rank looks up for `samples` samples: all ranks' for its shards, its own
    for tables that are `replicated`; where a sample's rows are not pooled, each of its `positions`
    is one. `hot_rows` of each are in device memory as well.
    """

    run: Run
    placed: TablePlacement
    tables: tuple[Table, ...]
    samples: int
    replicated: bool
    hot_rows: tuple[int, ...] = ()
    known: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Attributes of its lookup that do not follow from its tables."""
    positions: float = 1.0

    @property
    def cached_at(self) -> tuple[str, ...]:
        """Where the caches of its rows lie, each behind the one before."""
        return tuple(self.run.placement.cache(name).at for name in self.placed.caches)

    @cached_property
    def lookups(self) -> int:
        """Rows looked up in all tables, repeats counted."""
        return sum(table.lookups(self.samples) for table in self.tables)

    @property
    def bags(self) -> int:
        """Pooled vectors."""
        return self.samples * len(self.tables)

    @property
    def total_dim(self) -> int:
        return sum(table.dim for table in self.tables)

    def mean(self, values: Iterable[float]) -> float:
        """The mean of a value per table over the group's lookups."""
        counts = [table.lookups(self.samples) for table in self.tables]
        return sum(n * x for n, x in zip(counts, values, strict=True)) / sum(counts)

    def of_samples(self, run: Run) -> Group:
        """The same tables for the samples of another micro-batch."""
        samples = run.batch if self.replicated else run.global_batch
        return replace(self, run=run, samples=max(round(samples * self.positions), 1))


class Source(Protocol):
    """The tables of one group in a step: made once, then asked per micro-batch in this order.

    Learning is the backward pass of `look_up`: what it needs stands on the recorder's tape, by a
    rule that brings gradients to where rows are and applies them.
    """

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """What a tape must know of for gradients to come to the rows."""

    def fetch(self, r: Recorder, group: Group, keys: Jagged) -> None:
        """Bring rows that a cache has not; with `rows_ahead` a pipeline calls it for a later step,
        with its attributes around it. Nothing where lookups go to the tier itself."""
        return

    def look_up(self, r: Recorder, group: Group, keys: Jagged) -> Tensor:
        """Pooled rows `[samples, total dim]` in device memory."""

    def finish(self, r: Recorder, run: Run) -> None:
        """When the last micro-batch is done: all ranks' gradients, and the optimizer's step on
        their rows, where that is left."""
        return


TIERED: Registry[Callable[[Recorder, Group], Source]] = Registry(
    "memory of rows", "perfmodel.tiered", "perfmodel.workload.tiered"
)
"""What makes the weights of a group's tables, and reads them. By the tier of a table's placement;
of rows behind caches at a place of a package's own, by the tier and all such places
(`host/rack`)."""
_CACHED_AT = {
    ("hbm", "device"): ((), (NIC,)),
    ("host", "device"): ((), ("hbm",)),
    **{("host", by): ((),) for by in ("host", "operators", "one_process")},
    (STORAGE, "host"): ((), ("host",)),
}
"""Of a tier, by who pools: places of the caches that its rows can lie behind."""


def source_of(r: Recorder, group: Group) -> Source:
    """The source of a group's rows. Raises `WorkloadError` for a placement that has none."""
    placed, at = group.placed, group.cached_at
    own = TIERED.get("/".join((placed.tier, *at)))
    if own is not None and at:
        return own(r, group)
    way = placed.tier, placed.pooled_on
    is_ours = any(tier == placed.tier for tier, _ in _CACHED_AT)
    is_hot = placed.hot_rows > 0 and (*way, at) != ("host", "device", ())
    if is_ours and (is_hot or at not in _CACHED_AT.get(way, ())):
        raise WorkloadError(
            f"placement: no software reads rows of tier {placed.tier} that are pooled on "
            f"{placed.pooled_on}, with {placed.hot_rows} hot rows and caches at {at or 'none'}"
        )
    return TIERED[placed.tier](r, group)


def output_route(placed: TablePlacement, table: Table, run: Run) -> str:
    """How rows come to the ranks with the samples: `pooled` as they are, each if they are not, and
    partial sums where a table is in rows; `columns` of them by themselves, another kind of sharding
    to TorchRec; `reduced` by adding up among all ranks; `within` first among linked ones.
    """
    holders = len(placed.ranks)
    by_row = placed.sharding in ("row_wise", "table_row_wise")
    if not (by_row and table.pooled) or run.ranks == 1:
        is_cut = placed.sharding == "column_wise" and run.ranks > 1
        return COLUMNS if is_cut else POOLED
    if holders == run.ranks:
        return REDUCED
    is_group = placed.sharding == "table_row_wise" and holders == run.linked
    return WITHIN if is_group else POOLED


def groups_of(run: Run) -> tuple[Group, ...]:
    """The rank's tables by how they are reached: those of its own shards first, then those that it
    looks up for its own samples alone.

    A rank without a shard, beside others that have some, takes part in exchanges with a row.
    """
    own = [(shard.table, shard.of(run.workload.tables)) for shard in run.plan.shards[run.rank]]
    every = [(number, run.workload.tables[number]) for number in run.plan.replicated]
    groups: list[Group] = []
    if not own and any(run.plan.shards):
        placed, row = TablePlacement("table_wise", (0,)), Table(1, 4, 1e-3)
        groups = [Group(run, placed, (row,), run.global_batch, replicated=False)]
    for tables, samples, replicated in (own, run.global_batch, False), (every, run.batch, True):
        alike: dict[tuple[float, *tuple[object, ...]], list[tuple[TablePlacement, Table]]] = {}
        for number, table in tables:
            about = run.placement.tables[number]
            way = (about.tier, about.pooled_on, about.caches, about.dtype, about.hot_rows > 0)
            positions = 1.0 if table.pooled else table.pooling
            key = positions, *way, output_route(about, table, run)
            one = table if table.pooled else replace(table, pooling=1.0)
            alike.setdefault(key, []).append((about, one))
        for (positions, *_), same in alike.items():
            hot = tuple(min(about.hot_rows, table.rows) for about, table in same)
            members = tuple(table for _, table in same)
            group = Group(run, same[0][0], members, samples, replicated, hot, positions=positions)
            groups.append(group.of_samples(run))
    return tuple(groups)


def read_one_by_one(
    r: Recorder, run: Run, shard: Shard, ids: Tensor, known: Mapping[str, str]
) -> Tensor:
    """Rows of a shard for `ids`, unpooled, from where the run's placement has them. `known`:
    attributes of their lookup.

    Raises `WorkloadError` where these are pooled on their way.
    """
    placement = run.placement
    placed = placement.tables[shard.table]
    one, count = replace(shard.of(run.workload.tables), pooling=1.0), ids.shape[0]
    group = Group(run, placed, (one,), samples=count, replicated=False, known=known)
    kept = {placement.cache(name).kept_by for name in placed.caches}
    by_row = {("hbm", ()), ("host", ()), ("host", ("hbm",))}  # what kernels give row by row
    is_pooled = placed.pooled_on != "device" or placed.hot_rows > 0
    if is_pooled or (placed.tier, group.cached_at) not in by_row or kept - {"kernels"}:
        raise WorkloadError(
            f"tables[{shard.table}] of sequences, whose rows are not summed on their way: the host "
            "adding up, drives and caches kept by operators are not modelled, device memory or the "
            "host's are, there behind a cache kept by kernels or none"
        )
    keys = Jagged(ids, r.tensor((count,), "int32"))
    source = source_of(r, group)
    r.parameter(*source.parameters)
    source.fetch(r, group, keys)
    return source.look_up(r, group, keys)


def row_dims(group: Group) -> dict[str, float]:
    """Dims of an op on the rows that a group looks up: means over its lookups, sums kept."""
    counts = [table.lookups(group.samples) for table in group.tables]
    dtype, optimizer = group.placed.dtype, group.run.workload.training.table_optimizer
    sizes = [row_bytes(table, dtype) for table in group.tables]
    unique = [table.unique_rows(group.samples) for table in group.tables]
    states = [state_bytes(table, optimizer) for table in group.tables]
    sets = sum(
        distinct_in_parts(table, count, PART, len(WORKING_SETS)) * size
        for table, count, size in zip(group.tables, counts, sizes, strict=True)
    )
    return {
        **dict(zip(WORKING_SETS, np.asarray(sets).tolist(), strict=True)),
        "lookups": sum(counts),
        "row_bytes": group.mean(sizes),
        "unique_rows": sum(unique),
        "state_bytes": sum(s * u for s, u in zip(states, unique, strict=True)) / sum(unique),
        "bags": group.bags,
        "dim": group.total_dim / len(group.tables),
    }


def prefetch_attributes(group: Group, stream: str = "") -> dict[str, str]:
    """Of ops that bring rows: with `rows_ahead`, for the next step, beside this (on `stream`)."""
    if not group.run.pipeline.rows_ahead:
        return {}
    return {"pipeline": "fetch"} | ({"stream": stream} if stream else {})


MIN_ROWS = 0.5
"""Fewer expected rows than this are none, else at least one is fetched."""


@dataclass(frozen=True)
class RowCacheUse:
    """Per batch, of a group's `lookups`: of its `unique_rows` how many are fetched. `held_rows` of
    the cache are the group's.
    """

    cache: RowCache
    lookups: float
    unique_rows: float
    missed_rows: float
    held_rows: float
    row_bytes: float


def row_cache_use(group: Group, name: str) -> RowCacheUse:
    """What `group` finds in the cache `name`, which it shares with others of its rank.

    Raises `WorkloadError` where a batch needs more rows than the cache holds.
    """
    cache = group.run.placement.cache(name)
    sharing = [
        one.of_samples(group.run) for one in groups_of(group.run) if name in one.placed.caches
    ]
    accesses = [
        table.access(table.lookups(one.samples), row_bytes(table, one.placed.dtype))
        for one in sharing
        for table in one.tables
    ]
    use = cache.steady_use(accesses)
    # Of equal tables each is the mean one.
    held = [(t, one.replicated, one.placed.dtype) for one in sharing for t in one.tables]
    of_group = [(t, group.replicated, group.placed.dtype) for t in group.tables]
    every, own = Counter(held), Counter(of_group)
    part = np.array([own[key] / every[key] for key in held])
    needed = float(np.dot(use.distinct_rows, use.row_bytes))
    if needed > cache.capacity_bytes * (1 + 1e-9):
        raise WorkloadError(
            f"cache {cache.name!r}: the rows of one batch take {needed / 1e9:.3g} GB, it holds "
            f"{cache.capacity_bytes / 1e9:.3g} GB: take a larger cache or a smaller batch (reading "
            "the others where they lie is not modelled)"
        )
    lookups = part * use.lookups
    fetched = float(part @ use.fetched_rows)
    return RowCacheUse(
        cache,
        float(lookups.sum()),
        float(part @ use.distinct_rows),
        max(fetched, 1.0) if fetched >= MIN_ROWS else 0.0,
        float(part @ use.cached_rows),
        float(use.row_bytes @ lookups / lookups.sum()),
    )
