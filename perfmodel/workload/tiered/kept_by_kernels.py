"""FBGEMM's UVM caching: sets of 32 places, looked up, filled and evicted by its own kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from perfmodel.graph.ops import Tensor
from perfmodel.workload.eager.batched import Batched, look_up
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.parts.jagged import Jagged, offsets
from perfmodel.workload.tables import lookups
from perfmodel.workload.tiered.cache_use import Use, ahead, use_of
from perfmodel.workload.tiered.hbm import table_batched, with_attributes
from perfmodel.workload.tiered.source import Group

FETCH_STREAM = "fetch"
"""Of TorchRec's prefetch pipeline."""
WAYS = 32
"""Places of a set. Source: FBGEMM, `DEFAULT_ASSOC`: a warp of NVIDIA's GPUs."""


@dataclass(frozen=True)
class KeptByKernels:
    """See `source.Source`."""

    tables: Batched
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

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        return (self.tables.weights,)

    def fetch(self, r: Recorder, group: Group, keys: Jagged) -> None:
        """Rows that miss, found by the distinct keys."""
        use = device_use(group)
        with r.with_attributes(ahead(group, FETCH_STREAM)):
            self.find(r, use, keys, use.missed_rows)

    def find(self, r: Recorder, use: Use, keys: Jagged, moved_rows: float) -> None:
        """The distinct keys, those of them that miss; `moved_rows` come over the bus."""
        about = _about(use, self.state) | {"missed_rows": repr(moved_rows)}
        linear = r.tensor(keys.values.shape, "int64")
        name = "fbgemm::linearize_cache_indices"
        given = (self.host_rows, self.tables.hash_sizes, linear, self.state, self.tables.weights)
        r.leaf(name, (self.tables.hash_sizes, keys.values), linear)
        r.leaf(f"fbgemm::{_short(use)}_cache_populate", given, self.tables.weights, about=about)

    def look_up(self, r: Recorder, group: Group, keys: Jagged) -> Tensor:
        about = lookups(group.tables, group.samples).to_attributes()
        places = r.tensor(keys.values.shape, "int32")
        given = (keys.values, self.state)
        r.leaf(
            "fbgemm::lxu_cache_lookup", given, places, about=_about(device_use(group), self.state)
        )
        tables = with_attributes(self.tables, about)
        return look_up(r, tables, keys.values, offsets(r, keys), group.samples)


def device_use(group: Group) -> Use:
    """What a batch finds in the first of the caches, the device's."""
    return use_of(group, group.placed.caches[0])


def _short(use: Use) -> str:
    return "lfu" if use.cache.policy in ("lfu", "static") else "lru"


def _about(use: Use, state: Tensor) -> dict[str, str]:
    sets = max(state.shape[0] // WAYS, 1)
    figures = {
        "lookups": use.lookups,
        "unique_rows": use.unique_rows,
        "missed_rows": use.missed_rows,
        "row_bytes": use.row_bytes,
        "sets": float(sets),
        "ways": float(WAYS),
    }
    return {name: repr(value) for name, value in figures.items()}
