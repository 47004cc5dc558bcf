"""Ways to lay out tables, and the planner's problem on classes of ranks.

A step waits for the rank that looks up most, and for the exchange of the one that sends most; what
the exchange takes beyond the layers beside it shows. Gradients of replicas are summed beside
what the backward pass does to rows, and stepped then. With W and V the largest sums of `work_us`
and `sent_us` of any rank, S of `summed_us`, E = V + shared_us + fixed_us and forward share f:

    step = max(dense + max(W, f W + S) + max(bottom forward, f E) + max(bottom backward, (1 - f) E),
               E + S + all-reduce + top forward)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfmodel.base.arrays import Floats, Ints, Mask
from perfmodel.designs.deployment import Deployment
from perfmodel.embedding import RowDtype, Sharding, TablePlacement
from perfmodel.workload.memory_tiers import shard_bytes
from perfmodel.workload.sharding import Shard
from perfmodel.workload.tables import Table

MIN_COLUMNS = 32
"""Narrower slices of a row waste the sectors that memory is read in."""
MAX_REPLICATED_BYTES = 1e9
"""Larger tables are not considered on every rank: their gradients alone take longer than rows."""
CACHED_FRACS = (0.5, 0.2, 0.05, 0.01)
"""Of a table outside device memory, what its cache there may hold: FBGEMM's 0.2, more and less."""
GRADIENT_BYTES = 4.0


@dataclass(frozen=True)
class Way:
    """One way to lay out table `number`: `shard` is what each of `parts` ranks looks up, of rows
    the mean of them."""

    number: int
    sharding: Sharding
    tier: str
    parts: int
    reach: int
    shard: Table
    dtype: RowDtype
    size_bytes: float
    cached_frac: float = 0.0
    """Of a shard outside device memory, what that caches."""

    def bytes_in(self, tier: str) -> float:
        """What a shard takes of one of `MEMORIES`."""
        if tier == self.tier:
            return self.size_bytes
        return self.cached_frac * self.size_bytes if tier == "hbm" else 0.0


ANY, GROUP, EVERY = 0, 1, 2
"""Whose ranks hold the shards: as many different ones, all of one linked group, or all."""
WHOLE = TablePlacement("table_wise", (0,))


def ways(deployment: Deployment, cached_fracs: Sequence[float] = ()) -> Iterator[Way]:
    """Every way that the deployment's machine allows, table by table; also in host memory, behind
    caches of `cached_fracs` of the shard in the device's. Tables of sequences lie in shards
    alone."""
    ranks, linked, about = deployment.ranks, deployment.machine.linked_gpus, deployment.workload
    optimizers = about.training.table_optimizer, about.training.dense_optimizer
    fused, dense = optimizers if deployment.train else (None, None)
    unpooled, tables = about.sequence.layers > 0, about.tables
    for number, table in enumerate(tables):
        dtype = deployment.placement.tables[number].dtype
        placed = replace(WHOLE, dtype=dtype)
        whole = shard_bytes(table, placed, fused)
        columns, parts = list[tuple[Sharding, int, int, Table]](), 2
        while parts <= ranks and table.dim % parts == 0 and table.dim // parts >= MIN_COLUMNS:
            columns.append(("column_wise", parts, ANY, replace(table, dim=table.dim // parts)))
            parts *= 2

        kinds: list[tuple[Sharding, int, int, Table]] = [("table_wise", 1, ANY, table), *columns]
        if 1 < ranks <= table.rows:
            kinds.append(("row_wise", ranks, EVERY, Shard(number, ranks).of(tables)))
        if 1 < linked < ranks and ranks % linked == 0 and table.rows >= linked:
            kinds.append(("table_row_wise", linked, GROUP, Shard(number, linked).of(tables)))
        if ranks > 1 and not unpooled:
            kinds.append(("data_parallel", ranks, EVERY, table))
        for sharding, parts, reach, shard in kinds:
            size = whole / parts
            if sharding == "data_parallel":
                size = replica_bytes(table, placed, dense)
                if size > MAX_REPLICATED_BYTES:
                    continue
            yield (way := Way(number, sharding, "hbm", parts, reach, shard, dtype, size))
            for cached in () if sharding == "data_parallel" else cached_fracs:
                yield replace(way, tier="host", cached_frac=cached)


def replica_bytes(table: Table, placed: TablePlacement, optimizer: str | None) -> float:
    """Of a replica: rows, and where the dense `optimizer` steps them a gradient and its state."""
    gradient_bytes = table.rows * table.dim * GRADIENT_BYTES if optimizer else 0.0
    return shard_bytes(table, placed, optimizer) + gradient_bytes


MEMORIES = ("hbm", "host")
HBM, HELD = 2, 4
"""Of what a shard takes of its rank (work, exchange, bytes of each memory): device memory's place,
and how many there are."""


@dataclass(frozen=True)
class FixedTimes:
    """What no plan changes, in microseconds: `dense_us` without the bottom MLP, that, and sums."""

    dense_us: float = 0.0
    bottom_us: tuple[float, float] = (0.0, 0.0)
    """Forward, backward."""
    top_us: float = 0.0
    reduced_us: float = 0.0


SMOOTH = 30.0
"""The power of the norm."""
SHARD_FRAC = 0.03
"""assumed: by how much a step gets longer with as many more single shards as there are tables: the
work of the host and of copies for each, which only the full schedule knows."""


@dataclass(frozen=True)
class Problem:
    """Tables to lay out, each in one of its `ways`, on `ranks` in groups of `linked`; times are of
    one shard, `[ways]`."""

    ways: tuple[Way, ...]
    kind: Ints
    """Which of `fixed_us` a way needs."""
    work_us: Floats
    """Lookups and updates on the shard's rank."""
    sent_us: Floats
    """What its exchange takes of its rank."""
    shared_us: Floats
    """What its exchange takes of all ranks."""
    summed_us: Floats
    """Gradients of replicas, summed over ranks."""
    first_us: Floats
    """Of row-wise parts, what the first rank works more than the mean: blocks by popularity."""
    scattered_us: Floats
    """The same of the busiest rank: rows that fall to ranks by chance."""
    ranks: int
    linked: int
    room_bytes: tuple[float, ...]
    """What each of `MEMORIES` has for a rank's tables."""
    fixed_us: tuple[float, ...] = ()
    beside: FixedTimes = field(default_factory=FixedTimes)
    forward_frac: float = 0.5

    def taken(self, choice: int) -> Floats:
        """What the shards of a way take of their ranks, `[parts, held]`, or `[held]` of each."""
        more, parts = self.first_us[choice], self.ways[choice].parts
        each: Floats = self.sizes[choice]
        if not more:
            return each
        taken = np.tile(each, (parts, 1))
        taken[:, 0] += np.where(np.arange(parts) == 0, more, -more / (parts - 1))
        return taken

    def spread_us(self, chosen: Ints) -> float:
        """What the busiest rank works more for rows that fall to ranks by chance: of several tables
        independent deviations."""
        return float(np.sqrt((self.scattered_us[chosen] ** 2).sum()))

    @cached_property
    def parts(self) -> Ints:
        """Shards of each way, `[ways]`; likewise `reach` and `sharding`."""
        return np.array([way.parts for way in self.ways])

    @cached_property
    def reach(self) -> Ints:
        return np.array([way.reach for way in self.ways])

    @cached_property
    def sharding(self) -> NDArray[np.object_]:
        return np.array([way.sharding for way in self.ways], object)

    @cached_property
    def sizes(self) -> Floats:
        """What one shard takes of its rank: work, exchange, bytes in `MEMORIES`, `[ways, held]`."""
        held_bytes = [[way.bytes_in(tier) for tier in MEMORIES] for way in self.ways]
        return np.column_stack([self.work_us, self.sent_us, held_bytes])

    @cached_property
    def limits(self) -> Floats:
        return np.array([np.inf, np.inf, *self.room_bytes])

    @cached_property
    def too_large(self) -> Mask:
        """Ways with more in a memory than a rank has of it, `[ways]`."""
        return np.asarray((self.sizes > self.limits).any(axis=1))

    @cached_property
    def of_table(self) -> list[Ints]:
        number = np.array([way.number for way in self.ways])
        return [np.flatnonzero(number == table) for table in range(int(number.max()) + 1)]

    @property
    def tables(self) -> int:
        return len(self.of_table)

    @property
    def groups(self) -> int:
        return self.ranks // self.linked

    def step_us(self, work_us: ArrayLike, exchange_us: ArrayLike, summed_us: float) -> Floats:
        """The step of W, E (any shape) and `summed_us` in all."""
        it, forward = self.beside, self.forward_frac
        exchange = np.asarray(exchange_us, np.float64)
        shown = np.maximum(it.bottom_us[0], forward * exchange)
        shown = shown + np.maximum(it.bottom_us[1], (1 - forward) * exchange)
        beside = exchange + summed_us + it.reduced_us + it.top_us
        work = np.asarray(work_us, np.float64)
        return np.maximum(
            it.dense_us + np.maximum(work, forward * work + summed_us) + shown, beside
        )

    def shared(self, chosen: Ints) -> tuple[float, float]:
        """What no rank alone decides of the `chosen` ways: the exchange that all take part in, with
        what each kind of it adds however little it carries; and the sums of gradients."""
        fixed_us = sum(self.fixed_us[kind] for kind in set(self.kind[chosen].tolist()))
        return float(self.shared_us[chosen].sum()) + fixed_us, float(self.summed_us[chosen].sum())

    def shards_factor(self, chosen: Ints) -> float:
        """How much longer a step is for its single shards."""
        single = np.where(self.reach[chosen] == EVERY, 0, self.parts[chosen])
        return 1.0 + SHARD_FRAC * float(single.sum()) / self.tables

    def smooth_us(self, held: Floats, chosen: Ints) -> float:
        """As `Layout.rated_us` with `held` `[ranks, held]`, norms of loads in the place of the
        largest: of two layouts with one busiest rank, the more even one is better."""
        top = held[:, :2].max(axis=0) + 1e-12
        work_us, sent_us = top * ((held[:, :2] / top) ** SMOOTH).mean(axis=0) ** (1 / SMOOTH)
        work_us += self.spread_us(chosen)
        shared_us, summed_us = self.shared(chosen)
        step_us = float(self.step_us(work_us, sent_us + shared_us, summed_us))
        return step_us * self.shards_factor(chosen)


@dataclass(frozen=True)
class Layout:
    """A solution: per table its way and the ranks of its shards."""

    problem: Problem
    chosen: Ints
    ranks: tuple[tuple[int, ...], ...]

    @cached_property
    def held(self) -> Floats:
        """Per rank the sums of `Problem.sizes` over its tables, `[ranks, held]`."""
        held = np.zeros((self.problem.ranks, HELD))
        for choice, ranks in zip(self.chosen.tolist(), self.ranks, strict=True):
            held[list(ranks)] += self.problem.taken(choice)
        return held

    @cached_property
    def parts(self) -> dict[str, float]:
        """W, E and the sums of gradients."""
        busiest = self.held[:, :2].max(axis=0).tolist()
        shared_us, summed_us = self.problem.shared(self.chosen)
        exchange_us = busiest[1] + shared_us
        busiest[0] += self.problem.spread_us(self.chosen)
        return {"busiest_us": busiest[0], "exchange_us": exchange_us, "summed_us": summed_us}

    @property
    def step_us(self) -> float:
        """Of the surrogate."""
        return float(self.problem.step_us(*self.parts.values()))

    @property
    def rated_us(self) -> float:
        """The surrogate's step, longer for its shards: what searches compare."""
        return self.step_us * self.problem.shards_factor(self.chosen)

    @property
    def fits(self) -> bool:
        """Whether no rank holds more than it can."""
        return bool((self.held <= self.problem.limits * (1 + 1e-9)).all())
