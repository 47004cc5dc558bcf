"""What a step asks of the tables of one tier, and which of a rank's tables are reached alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, TypeAlias, runtime_checkable

from perfmodel.graph.ops import Tensor
from perfmodel.placement import TablePlacement
from perfmodel.registry import Registry
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.parts.jagged import Jagged
from perfmodel.workload.run import Run
from perfmodel.workload.tables import Table

POOLED, REDUCED, WITHIN, ADDED = "pooled", "reduced", "within", "added"


@dataclass(frozen=True)
class Group:
    """Tables, or parts of them, of one rank whose rows are reached alike.

    `tables` are what this rank looks up for `samples` samples: all ranks' for its shards, its own
    for tables that are `replicated`. `hot_rows` of each are in device memory as well.
    """

    run: Run
    placed: TablePlacement
    tables: tuple[Table, ...]
    samples: int
    replicated: bool
    hot_rows: tuple[int, ...] = ()

    @cached_property
    def lookups(self) -> int:
        """Rows looked up in all tables, repeats counted."""
        return sum(table.lookups(self.samples) for table in self.tables)

    @cached_property
    def unique_rows(self) -> float:
        """Distinct rows expected among them."""
        return sum(table.unique_rows(self.samples) for table in self.tables)

    @property
    def is_local(self) -> bool:
        """Whether the rank's host has all keys: none came over the network."""
        return self.replicated or self.run.ranks == 1

    @property
    def bags(self) -> int:
        """Pooled vectors."""
        return self.samples * len(self.tables)

    @property
    def total_dim(self) -> int:
        return sum(table.dim for table in self.tables)

    def of_samples(self, run: Run) -> Group:
        """The same tables for the samples of another micro-batch."""
        samples = run.batch if self.replicated else run.global_batch
        return replace(self, run=run, samples=samples)


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

    def look_up(self, r: Recorder, group: Group, keys: Jagged) -> Tensor:
        """Pooled rows `[samples, total dim]` in device memory."""


@runtime_checkable
class Shared(Protocol):
    """A source whose gradients the ranks add up when the last micro-batch is done."""

    def finish(self, r: Recorder, run: Run) -> None:
        """All ranks' gradients, and the optimizer's step on their rows."""


Reach: TypeAlias = Callable[[Recorder, Group], Source]
"""Makes the weights of a group's tables, and what reads them."""

TIERED: Registry[Reach] = Registry("way to rows", "perfmodel.tiered", "perfmodel.workload.tiered")
"""By what `reached_by` says of a table's placement."""


_POOLED = {
    "device": "",
    "host": "_pooled",
    "operators": "_operators",
    "one_process": "_one_process",
}


def reached_by(placed: TablePlacement, at: tuple[str, ...]) -> str:
    """`hbm`, `host` (read by the device over its bus), `host_pooled` (pooled by the host),
    `host_operators` (by its operators), `host_one_process` (by those of one process), `storage`;
    with hot rows in device memory `host+hot`; with caches, where each lies (`at`) behind it:
    `host/hbm`, `hbm/nic_local`."""
    tier = placed.tier + _POOLED[placed.pooled_on]
    return "/".join((f"{tier}+hot" if placed.hot_rows else tier, *at))


def way_home(placed: TablePlacement, run: Run) -> str:
    """How pooled rows come to the ranks with the samples: `pooled` as they are, partial sums where
    a table is in rows; `reduced` by adding up among all ranks; `within` first among linked ones;
    `added` by adapters that hold rows.
    """
    holders = len(placed.ranks)
    by_row = placed.sharding in ("row_wise", "table_row_wise")
    if not by_row or run.ranks == 1:
        return POOLED
    if holders == run.ranks:
        assert run.placement is not None
        at = [run.placement.cache(name).at for name in placed.caches]
        return ADDED if "nic_remote" in at and run.ranks > run.linked else REDUCED
    is_group = placed.sharding == "table_row_wise" and holders == run.linked
    return WITHIN if is_group else POOLED


_NOWHERE, _NO_TABLE = TablePlacement("table_wise", (0,)), Table(1, 4, 1e-3)


def groups_of(run: Run) -> tuple[Group, ...]:
    """The rank's tables by how they are reached: those of its own shards first, then those that it
    looks up for its own samples alone.

    A rank without a shard, beside others that have some, takes part in exchanges with a row.
    """
    own = [(shard.table, shard.of(run.workload.tables)) for shard in run.plan.shards[run.rank]]
    every = [(number, run.workload.tables[number]) for number in run.plan.replicated]
    found = _grouped(run, own, run.global_batch, replicated=False)
    if not own and any(run.plan.shards):
        found = [Group(run, _NOWHERE, (_NO_TABLE,), run.global_batch, replicated=False)]
    return (*found, *_grouped(run, every, run.batch, replicated=True))


def _grouped(
    run: Run, tables: list[tuple[int, Table]], samples: int, *, replicated: bool
) -> list[Group]:
    assert run.placement is not None
    alike: dict[tuple[object, ...], list[tuple[TablePlacement, Table]]] = {}
    for number, table in tables:
        about = run.placement.tables[number]
        alike.setdefault(_alike(about, run), []).append((about, table))
    return [
        Group(
            run,
            same[0][0],
            tuple(table for _, table in same),
            samples,
            replicated,
            tuple(min(about.hot_rows, table.rows) for about, table in same),
        )
        for same in alike.values()
    ]


def _alike(placed: TablePlacement, run: Run) -> tuple[object, ...]:
    return (
        placed.tier,
        placed.pooled_on,
        placed.caches,
        placed.dtype,
        placed.hot_rows > 0,
        way_home(placed, run),
    )
