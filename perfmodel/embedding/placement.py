"""Where each embedding table is, and how a step is laid out in time: values that designs edit.

Memories that hold rows have a registry. A plug-in adds its own by the entry point
`perfmodel.memories` (a `Memory`). How a step reads rows there is a way to rows
(`perfmodel.workload.tiered`), by ops whose cost a tier model says (`perfmodel.cost.tiers`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import isclose
from typing import TYPE_CHECKING, Any, Literal

from perfmodel.base.registry import Registry
from perfmodel.embedding.cache import POLICIES, CacheUse, TableAccess, steady_use
from perfmodel.errors import WorkloadError

if TYPE_CHECKING:
    from perfmodel.hardware import Node


HBM, HOST, STORAGE, NIC = "hbm", "host", "storage", "nic"


@dataclass(frozen=True)
class Memory:
    """A memory that holds rows.

    `label` names it in messages. `capacity_bytes` of a node's (of a rank's, if `is_of_rank`): None
    where the catalogue does not say, 0 where a machine has none. `caches` are how many of one name
    it holds. Without `holds_tables` it has room for caches only.
    """

    label: str
    capacity_bytes: Callable[[Node], float | None]
    caches: Callable[[Node], int]
    is_of_rank: bool = False
    holds_tables: bool = True


MEMORIES: Registry[Memory] = Registry("memory of rows", "perfmodel.memories")
"""By `tier` of a table's placement."""


def _times(each: float | None, count: int | None) -> float | None:
    return None if each is None else each * (count or 1)


for _name, _memory in {
    HBM: Memory("device memory", lambda node: node.device.hbm_bytes, lambda _: 1, is_of_rank=True),
    HOST: Memory("host memory", lambda node: node.host_memory_bytes, lambda node: node.gpus),
    STORAGE: Memory(
        "drives",
        lambda node: _times(node.storage.capacity_bytes, node.drives) if node.storage else 0.0,
        lambda node: node.gpus,
    ),
    NIC: Memory(
        "memory of adapters",
        lambda node: _times(node.nic.memory_bytes, node.nics) if node.nic else 0.0,
        lambda node: node.nics or 1,
        holds_tables=False,
    ),
}.items():
    MEMORIES.register(_name)(_memory)


Sharding = Literal["data_parallel", "table_wise", "column_wise", "row_wise", "table_row_wise"]
PooledOn = Literal["device", "host", "operators", "one_process"]
"""The device, over its bus; the host, all tables at once; PyTorch's operators on the host, table by
table, in a process per device or in one for all devices of a node."""
RowDtype = Literal["fp32", "fp16", "bf16", "fp8", "int8", "int4"]


@dataclass(frozen=True)
class RowCache:
    """A cache of rows, one on each rank, shared by all tables that name it.

    `at` is a name of `MEMORIES`; an adapter holds rows of other ranks' tables.
    `policy` is a name of `perfmodel.embedding.POLICIES`. `kept_by`: what finds, evicts and fetches
    rows in device memory: kernels of its own (`kernels`, FBGEMM), or `operators` of PyTorch.
    """

    name: str
    at: str
    capacity_bytes: float
    policy: str = "lru"
    kept_by: Literal["kernels", "operators"] = "kernels"

    def __post_init__(self) -> None:
        MEMORIES[self.at]
        POLICIES[self.policy]
        if not self.capacity_bytes > 0:
            raise WorkloadError(f"cache {self.name!r}: a capacity of {self.capacity_bytes:g} bytes")

    def steady_use(self, tables: Sequence[TableAccess]) -> CacheUse:
        """What a batch that looks `tables` up finds in it, after many like it."""
        return _steady_use(tuple(tables), self.capacity_bytes, self.policy)


_steady_use = lru_cache(maxsize=256)(steady_use)
"""The rank that misses most and the ops of a step ask the same."""


@dataclass(frozen=True)
class TablePlacement:
    """One table: its shards are on `ranks`, in this order; of columns a rank may have several.

    `tier` names the memory that holds all rows (`perfmodel.embedding.placement.MEMORIES`).
    `data_parallel`: the whole table on every one of them; `table_wise`: one rank; `column_wise` and
    `row_wise`: equal parts; `table_row_wise`: equal row-wise parts on the ranks of one node. The
    `hot_rows` most popular rows are replicated in every rank's device memory as well (or, with a
    host tier, live there while a step needs them); lookups of these go there. `caches` are names of
    the placement's. `pooled_on`: who gathers and adds up rows of a tier outside the device's memory
    that no cache there holds: the device, over its bus, or the host, which sends pooled rows.
    """

    sharding: Sharding
    ranks: tuple[int, ...]
    tier: str = HBM
    dtype: RowDtype = "fp32"
    hot_rows: int = 0
    caches: tuple[str, ...] = ()
    pooled_on: PooledOn = "device"

    def __post_init__(self) -> None:
        is_twice = len(set(self.ranks)) != len(self.ranks) and self.sharding != "column_wise"
        if not self.ranks or is_twice or min(self.ranks) < 0:
            first = ", ".join(map(str, self.ranks[:8]))
            raise WorkloadError(f"placement: ranks ({first}) cannot hold one shard each")
        if self.sharding == "table_wise" and len(self.ranks) != 1:
            raise WorkloadError(f"placement: table_wise on {len(self.ranks)} ranks: expected one")
        if not MEMORIES[self.tier].holds_tables:
            raise WorkloadError(f"placement: {MEMORIES[self.tier].label} holds caches, no tables")
        if self.pooled_on != "device" and self.tier == HBM:
            raise WorkloadError("placement: the host cannot pool rows in device memory")
        if self.hot_rows < 0:
            raise WorkloadError(f"placement: {self.hot_rows} hot rows")


@dataclass(frozen=True)
class Placement:
    """All tables of a workload, in its order, and the caches that they share.

    `group_ranks`: of so many ranks in a row each group has a copy of all tables, laid out over it
    as `tables` say of the first; None: all ranks together have one.
    """

    tables: tuple[TablePlacement, ...]
    caches: tuple[RowCache, ...] = ()
    group_ranks: int | None = None

    def __post_init__(self) -> None:
        known = [cache.name for cache in self.caches]
        if len(set(known)) != len(known):
            raise WorkloadError(f"placement: two caches of one name among {', '.join(known)}")
        for number, table in enumerate(self.tables):
            for name in table.caches:
                if name not in known:
                    raise WorkloadError(
                        f"placement: tables[{number}]: cache {name!r} is not among "
                        f"{', '.join(known) or 'none'}"
                    )

    def within(self, ranks: int) -> int:
        """How many of the `ranks` of a machine share a copy of the tables."""
        return self.group_ranks or ranks

    def cache(self, name: str) -> RowCache:
        return next(cache for cache in self.caches if cache.name == name)

    def edited(
        self,
        edit: Callable[[int, TablePlacement], dict[str, Any]],
        *,
        caches: tuple[RowCache, ...] = (),
    ) -> Placement:
        """Each table with the fields that `edit` (its number, its placement) gives it, and
        `caches` added to the existing ones."""
        made: dict[Hashable, TablePlacement] = {}  # of hundreds of tables many are alike
        tables = []
        for number, table in enumerate(self.tables):
            changed = edit(number, table)
            key = table, *changed.items()
            if key not in made:
                made[key] = replace(table, **changed)
            tables.append(made[key])
        return replace(self, tables=tuple(tables), caches=self.caches + caches)


@dataclass(frozen=True)
class MicroBatch:
    """Samples that go forward and backward together: a share of the batch.

    `popular`: all their lookups go to hot rows; the others of the pipeline have the hot lookups
    that these leave.
    """

    samples_frac: float = 1.0
    popular: bool = False

    def __post_init__(self) -> None:
        if not 0.0 <= self.samples_frac <= 1.0:
            raise WorkloadError(f"pipeline: a share of {self.samples_frac:g}: expected 0 to 1")


@dataclass(frozen=True)
class Pipeline:
    """What a step overlaps with what.

    `micro_batches` one after the other, their gradients added up. `input_ahead`: the next batch is
    brought and distributed beside the step. `rows_ahead`: rows that the next step needs from a
    slower tier are fetched beside this step; `rows_beside`: those that are not hot
    beside the step's first layers. `writes_behind`: rows go back to the slower tier beside the next
    step.
    `averages_copies`: after the step, copies of tables that groups of ranks have become their mean.
    `stash`: bytes of activations in host memory, until so many nodes of autograd before their use.
    `popular_frac`: of all samples, those that are popular and have steps of their own, during which
    rows that the others' steps need come and go.
    """

    micro_batches: tuple[MicroBatch, ...] = (MicroBatch(),)
    input_ahead: bool = False
    rows_ahead: bool = False
    rows_beside: bool = False
    writes_behind: bool = False
    stash: tuple[float, int] | None = None
    averages_copies: bool = False
    popular_frac: float = 0.0

    def __post_init__(self) -> None:
        total = sum(each.samples_frac for each in self.micro_batches)
        if not isclose(total, 1.0, abs_tol=1e-6):
            raise WorkloadError(f"pipeline: micro-batches of {total:g} of the batch: expected 1")
