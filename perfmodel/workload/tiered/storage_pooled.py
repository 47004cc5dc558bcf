"""Tables on drives whose rows the host reads, keeps in a cache of its memory, and pools.

What it stands for: software-defined memory (Ardestani et al. 2021): rows that the cache has not are
read asynchronously, all tables' at once, then pooled beside those that it has; pooled rows travel
to the device. Updates go to the cache and, as rows leave it, to the drives.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.graph.ops import Tensor
from perfmodel.workload.autograd.tape import Gradients, Node, rule, track
from perfmodel.workload.eager.creation import to_device
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.parts.jagged import Jagged
from perfmodel.workload.tiered.beside import HOST_MEMORY, beside, row_bytes, row_dims
from perfmodel.workload.tiered.cache_use import ahead, use_of
from perfmodel.workload.tiered.source import TIERED, Group

STORAGE = "storage"
"""The resource of a rank's reads and writes on drives."""
HOST = "cpu"
POOL = "tier::storage_pool"


@dataclass(frozen=True)
class OnDrives:
    """See `source.Source`. `reads`: of the last fetch, what the lookup waits for."""

    rows: Tensor
    cache: Tensor
    reads: Tensor

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        return (self.rows,)

    def fetch(self, r: Recorder, group: Group, keys: Jagged) -> None:
        """Rows that miss, of all tables at once."""
        missed = _missed(group)
        if not missed["rows"]:
            return
        with r.with_attributes(ahead(group)):
            values = keys.values if group.is_local else to_device(r, keys.values, HOST)
            given = (self.rows, values)
            beside(r, "storage_read", given, self.reads, stream=STORAGE, dims=missed)

    def look_up(self, r: Recorder, group: Group, keys: Jagged) -> Tensor:
        pooled = r.tensor((group.samples, group.total_dim), place=HOST)
        beside(
            r,
            "host_pool",
            (self.cache, self.reads),
            pooled,
            stream=HOST_MEMORY,
            dims=row_dims(group),
            blocks=True,
        )
        out = to_device(r, pooled, r.place, non_blocking=True)
        track(r, POOL, (self.rows,), out, self, group)
        return out


@rule(POOL, "StoragePoolBackward")
def _backward(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    """Gradients applied to rows in the cache; as many rows as came leave it for the drives."""
    (gradient,) = gradients
    assert gradient is not None
    source, group = node.saved
    pipeline = group.run.pipeline
    waits = pipeline is None or not pipeline.writes_behind
    given = to_device(r, gradient, HOST)
    beside(
        r,
        "host_apply",
        (given, source.cache),
        source.cache,
        stream=HOST_MEMORY,
        dims=row_dims(group),
        blocks=waits,
    )
    missed = _missed(group)
    if missed["rows"]:
        left = (source.cache,)
        beside(r, "storage_write", left, source.rows, stream=STORAGE, dims=missed, blocks=waits)
    return [None]


def _missed(group: Group) -> dict[str, float]:
    """Rows read from drives per step; without a cache, every distinct row."""
    if group.placed.caches:
        use = use_of(group, group.placed.caches[0])
        return {"rows": use.missed_rows, "row_bytes": use.row_bytes}
    sizes = [row_bytes(table, group.placed.dtype) for table in group.tables]
    counts = [table.unique_rows(group.samples) for table in group.tables]
    total = sum(counts)
    mean = sum(size * count for size, count in zip(sizes, counts, strict=True)) / total
    return {"rows": total, "row_bytes": mean}


def _on_drives(r: Recorder, group: Group) -> OnDrives:
    elements = sum(table.rows * table.dim for table in group.tables)
    dtype = group.placed.dtype
    rows, cache = (r.tensor((elements,), dtype, place=HOST) for _ in range(2))
    return OnDrives(rows, cache, r.tensor((group.lookups,), dtype, place=HOST))


TIERED.register("storage_pooled")(_on_drives)
TIERED.register("storage_pooled/host")(_on_drives)
