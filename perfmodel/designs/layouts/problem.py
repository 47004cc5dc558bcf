"""Ways to lay out tables, and the planner's problem on classes of ranks.

A step waits for the rank that looks up most, and in each exchange for the one that sends most; what
exchanges take beyond the layers beside them shows. Gradients of replicas are summed beside what the
backward pass does to rows of other tables. With W the largest sum of `work_us` of any rank, R that
of replicas, S the sum of `summed_us`, E that of `shared_us` and the largest of each of `sent_us`,
with the `fixed_us` of their kinds, and forward share f:

    step = max(dense + max(W, f W + (1 - f) R + S) + max(bottom forward, f E)
                   + max(bottom backward, (1 - f) E),
               E + S + all-reduce + top forward)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Floats, Ints, Mask
from perfmodel.designs.deployment import Deployment
from perfmodel.embedding import RowDtype, Sharding, TablePlacement
from perfmodel.workload.memory_tiers import shard_bytes
from perfmodel.workload.sharding import Shard
from perfmodel.workload.tables import Table

MIN_COLUMNS = 32
"""Narrower slices of a row waste the sectors that memory is read in."""
MAX_COPIED_BYTES = 1e9
"""Tables with larger gradients, or in inference larger rows, are not considered on every rank."""
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
        placed = replace(WHOLE, dtype=(dtype := deployment.placement.tables[number].dtype))
        whole = shard_bytes(table, placed, fused)
        kinds: list[tuple[Sharding, int, int, Table]] = [("table_wise", 1, ANY, table)]
        for parts in (1 << power for power in range(1, ranks.bit_length())):
            if table.dim % parts == 0 and table.dim // parts >= MIN_COLUMNS:
                kinds.append(("column_wise", parts, ANY, replace(table, dim=table.dim // parts)))
        if 1 < ranks <= table.rows:
            kinds.append(("row_wise", ranks, EVERY, Shard(number, ranks).of(tables)))
        if 1 < linked < ranks and ranks % linked == 0 and table.rows >= linked:
            kinds.append(("table_row_wise", linked, GROUP, Shard(number, linked).of(tables)))
        copied_bytes = table.rows * table.dim * GRADIENT_BYTES if deployment.train else whole
        if ranks > 1 and not unpooled and copied_bytes <= MAX_COPIED_BYTES:
            kinds.append(("data_parallel", ranks, EVERY, table))
        for sharding, parts, reach, shard in kinds:
            is_copied = sharding == "data_parallel"
            size = replica_bytes(table, placed, dense) if is_copied else whole / parts
            yield (way := Way(number, sharding, "hbm", parts, reach, shard, dtype, size))
            for cached in () if is_copied else cached_fracs:
                yield replace(way, tier="host", cached_frac=cached)


def replica_bytes(table: Table, placed: TablePlacement, optimizer: str | None) -> float:
    """Of a replica: rows, and where the dense `optimizer` steps them a gradient and its state."""
    gradient_bytes = table.rows * table.dim * GRADIENT_BYTES if optimizer else 0.0
    return shard_bytes(table, placed, optimizer) + gradient_bytes


MEMORIES = ("hbm", "host")
HBM, HELD = 3, 5
"""Of what a shard takes of its rank (work, exchanges of rows and of keys, bytes of each memory):
device memory's place, and how many there are."""


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
    """What its exchanges take of its rank: of rows, of keys. `[2, ways]`"""
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
    fixed_us: tuple[float, ...] = (0.0,)
    """What each kind adds however little it carries; the last is that of sums."""
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
        """What one shard takes of its rank, `[ways, held]`."""
        held_bytes = [[way.bytes_in(tier) for tier in MEMORIES] for way in self.ways]
        return np.column_stack([self.work_us, *self.sent_us, held_bytes])

    @cached_property
    def limits(self) -> Floats:
        return np.array([*[np.inf] * HBM, *self.room_bytes])

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

    def step_us(
        self, work_us: float, exchange_us: float, summed_us: float, replicas_us: float
    ) -> float:
        """The step of W, E, S and R."""
        it, fracs = self.beside, (self.forward_frac, 1 - self.forward_frac)
        shown_us = sum(
            max(us, frac * exchange_us) for us, frac in zip(it.bottom_us, fracs, strict=True)
        )
        alone_us = fracs[0] * work_us + fracs[1] * replicas_us + summed_us
        kernels_us = it.dense_us + max(work_us, alone_us) + shown_us
        return max(kernels_us, exchange_us + summed_us + it.reduced_us + it.top_us)

    @cached_property
    def replicas_us(self) -> Floats:
        """Of replicas alone, `work_us`."""
        return np.where(self.kind == len(self.fixed_us) - 1, self.work_us, 0.0)

    def shared(self, chosen: Ints) -> tuple[float, float, float]:
        """What no rank alone decides of the `chosen` ways: the exchange that all take part in, with
        what each kind of it adds however little it carries; S and R."""
        used = np.isin(np.arange(len(self.fixed_us)), self.kind[chosen])
        *exchanged, summed = (used * self.fixed_us).tolist()
        shared_us = float(self.shared_us[chosen].sum()) + sum(exchanged)
        summed_us = float(self.summed_us[chosen].sum()) + summed
        return shared_us, summed_us, float(self.replicas_us[chosen].sum())

    def smooth_us(self, held: Floats, chosen: Ints) -> float:
        """As `Layout.step_us` with `held` `[ranks, held]`, norms of loads in the place of the
        largest: of two layouts with one busiest rank, the more even one is better."""
        top = held[:, :HBM].max(axis=0) + 1e-12
        norms = top * ((held[:, :HBM] / top) ** SMOOTH).mean(axis=0) ** (1 / SMOOTH)
        work_us, *sent = norms.tolist()
        work_us += self.spread_us(chosen)
        shared_us, *of_replicas = self.shared(chosen)
        return self.step_us(work_us, sum(sent) + shared_us, *of_replicas)


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
            np.add.at(held, list(ranks), self.problem.taken(choice))  # a rank may have several
        return held

    @cached_property
    def parts(self) -> dict[str, float]:
        """W, E, S and R."""
        work_us, *sent = self.held[:, :HBM].max(axis=0).tolist()
        shared_us, summed_us, replicas_us = self.problem.shared(self.chosen)
        work_us += self.problem.spread_us(self.chosen)
        of_replicas = {"summed_us": summed_us, "replicas_us": replicas_us}
        return {"busiest_us": work_us, "exchange_us": sum(sent) + shared_us} | of_replicas

    @property
    def step_us(self) -> float:
        """Of the surrogate: what searches compare."""
        return self.problem.step_us(*self.parts.values())

    @property
    def fits(self) -> bool:
        """Whether no rank holds more than it can."""
        return bool((self.held <= self.problem.limits * (1 + 1e-9)).all())
