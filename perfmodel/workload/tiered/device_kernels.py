"""Tables read by table-batched kernels: in device memory, over the bus, or in their cache.

What it stands for: FBGEMM's table-batched embeddings with weights in unified memory that stays on
the host (`EmbeddingLocation.MANAGED`), the optimizer's state with them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from perfmodel.ops.graph import Tensor
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.eager.table_batched import Batched, batched, look_up
from perfmodel.workload.jagged import Jagged, offsets
from perfmodel.workload.tables import lookups
from perfmodel.workload.tiered.source import (
    TIERED,
    Group,
    RowCacheUse,
    prefetch_attributes,
    row_cache_use,
)


@dataclass(frozen=True)
class DeviceTables:
    """See `source.Source`."""

    tables: Batched

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        return (self.tables.weights,)

    def fetch(self, r: Recorder, group: Group, keys: Jagged) -> None:
        """Nothing: all rows are there."""

    def look_up(self, r: Recorder, group: Group, keys: Jagged) -> Tensor:
        read, bags = group.read
        tables = with_attributes(self.tables, lookups(read, bags).to_attributes())
        return look_up(r, tables, keys.values, offsets(r, keys), bags)


def with_attributes(tables: Batched, about: dict[str, str]) -> Batched:
    """The operator, its lookups described by `about`."""
    return replace(tables, attributes={**tables.attributes, **about})


@TIERED.register("hbm")
def device_tables(r: Recorder, group: Group) -> DeviceTables:
    """Weights in device memory."""
    return DeviceTables(table_batched(r, group))


def table_batched(r: Recorder, group: Group) -> Batched:
    """The tables of a group as one operator."""
    tables = group.tables
    return batched(
        r,
        tuple(table.rows for table in tables),
        tuple(table.dim for table in tables),
        dtype=group.placed.dtype,
        optimizer=group.run.workload.training.table_optimizer,
        is_modern=True,
        attributes=lookups(*group.read).to_attributes(),
    )


HOST = "cpu"


@TIERED.register("host")
def tables_over_bus(r: Recorder, group: Group) -> DeviceTables:
    """The operator of device memory, its weights on the host."""
    tables = table_batched(r, group)
    weights = r.tensor(tables.weights.shape, tables.weights.dtype, place=HOST)
    return DeviceTables(replace(tables, weights=weights))


FETCH_STREAM = "fetch"
"""Of TorchRec's prefetch pipeline."""
WAYS = 32
"""Places of a set. Source: FBGEMM, `DEFAULT_ASSOC`: a warp of NVIDIA's GPUs."""


@dataclass(frozen=True)
class KernelCache(DeviceTables):
    """See `source.Source`."""

    state: Tensor
    """Per place of the cache the row that it holds, and when it was last used."""
    host_rows: Tensor

    @classmethod
    def of(cls, r: Recorder, group: Group) -> Self:
        tables, use = table_batched(r, group), device_use(group)
        slots = max(round(use.held_rows), WAYS)
        width = max(round(use.row_bytes / 4), 1)
        cached = r.tensor((slots * width,), group.placed.dtype)
        elements = tables.weights.shape
        rows = r.tensor(elements, group.placed.dtype, place="cpu")
        return cls(replace(tables, weights=cached), r.tensor((slots, 2), "int64"), rows)

    def fetch(self, r: Recorder, group: Group, keys: Jagged) -> None:
        """Rows that miss, found by the distinct keys."""
        use = device_use(group)
        with r.with_attributes(prefetch_attributes(group, FETCH_STREAM)):
            self.find(r, use, keys, use.missed_rows)

    def find(self, r: Recorder, use: RowCacheUse, keys: Jagged, moved_rows: float) -> None:
        """The distinct keys, those of them that miss; `moved_rows` come over the bus."""
        about = _about(use, self.state) | {"missed_rows": repr(moved_rows)}
        linear = r.tensor(keys.values.shape, "int64")
        sizes, weights = self.tables.hash_sizes, self.tables.weights
        given = (self.host_rows, sizes, linear, self.state, weights)
        kind = "lfu" if use.cache.policy in ("lfu", "static") else "lru"
        r.leaf("fbgemm::linearize_cache_indices", (sizes, keys.values), linear)
        r.leaf(f"fbgemm::{kind}_cache_populate", given, weights, about=about)

    def look_up(self, r: Recorder, group: Group, keys: Jagged) -> Tensor:
        places, about = r.tensor(keys.values.shape, "int32"), _about(device_use(group), self.state)
        r.leaf("fbgemm::lxu_cache_lookup", (keys.values, self.state), places, about=about)
        return super().look_up(r, group, keys)


def device_use(group: Group) -> RowCacheUse:
    """What a batch finds in the first of the caches, the device's."""
    return row_cache_use(group, group.placed.caches[0])


def _about(use: RowCacheUse, state: Tensor) -> dict[str, str]:
    names = ("lookups", "unique_rows", "missed_rows", "row_bytes")
    figures = {name: getattr(use, name) for name in names}
    figures |= {"sets": float(max(state.shape[0] // WAYS, 1)), "ways": float(WAYS)}
    return {name: repr(value) for name, value in figures.items()}
