"""Tables in host memory that the host pools and updates, on drives, or in expansion memory.

At once: an `nn.EmbeddingBag` on the CPU in a model whose dense part is on GPUs. The training thread
waits for the lookup and sends the pooled rows; backward waits for their gradients.

By operators: one `nn.EmbeddingBag(sparse=True)` per table and `torch.optim.SGD` on the CPU. The
training thread runs an operator per table in forward, for the sparse gradient and for the update;
pooled rows and their gradients are copied from and to pageable memory, all tables at once.
Optimizers other than SGD cost more than this. Either every GPU has a process, and a share of the
cores, or one process on all cores serves all GPUs of a node (source: `mixed_forward` in
DLRM/dlrm_baseline_cpu_gpu.py of STAR-Laboratory/Accelerating-RecSys-Training): it looks up the
whole batch, sends it to the first GPU, and copies each GPU's part from there, table by table;
gradients come back the same way. In such a process the threads of all GPUs take turns in Python,
which is left out, and so is copying the dense parameters in each step.

On drives or in expansion memory, behind a cache in host memory: software-defined memory (Ardestani
et al. 2021). Rows that the cache has not are read asynchronously, all tables' at once, then pooled
with those that it has; pooled rows travel to the device. Updates go to the cache and, as rows leave
it, to the drives. Behind a cache in the device's memory: FBGEMM's table-batched embeddings on SSD,
and Neo's hierarchy of HBM, DDR and SSD (Mudigere et al. 2022): keys that miss go to the host, which
reads their rows from its own cache or from drives and sends them; in training as many rows go the
other way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from perfmodel.embedding.placement import EXPANSION, STORAGE
from perfmodel.ops.graph import Tensor
from perfmodel.ops.vocabulary.tiers import OPERATOR, PROCESSES
from perfmodel.workload.eager.recorder import Gradients, Recorder
from perfmodel.workload.eager.tensors import copy, to_device
from perfmodel.workload.jagged import Jagged, record_row_op
from perfmodel.workload.step import Run
from perfmodel.workload.tables import Table, row_bytes
from perfmodel.workload.tiered.device_kernels import (
    FETCH_STREAM,
    KernelCache,
    OperatorCache,
    device_use,
    tables_over_bus,
)
from perfmodel.workload.tiered.hot_rows import hot_rows
from perfmodel.workload.tiered.source import (
    HOST_MEMORY,
    TIERED,
    Group,
    RowCacheUse,
    Source,
    prefetch_attributes,
    record_on_host,
    row_cache_use,
)

HOST = "cpu"


@dataclass(frozen=True)
class PooledOnHost(Source):
    """Rows in host memory, of all tables at once."""

    weights: Tensor

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        return (self.weights,)

    def look_up(self, r: Recorder, group: Group, keys: Jagged) -> Tensor:
        values = keys.values if group.is_local else to_device(r, keys.values, HOST)
        pooled = r.tensor((group.samples, group.total_dim), place=HOST)
        record_on_host(r, "host_pool", group, (self.weights, values), pooled)
        out = to_device(r, pooled, r.place, non_blocking=True)

        def backward(gradient: Tensor) -> Gradients:
            """Gradients of pooled rows to the host, which applies them to the rows."""
            given = (to_device(r, gradient, HOST), values, self.weights)
            record_on_host(r, "host_apply", group, given, self.weights, group.waits_for_writes)
            return [None]

        return r.track("HostPoolBackward", (self.weights,), out, backward)


Weights = tuple[Tensor, ...]


@dataclass(frozen=True)
class OperatorsOnHost(Source):
    """See `source.Source`, `source.Shared`."""

    weights: Weights
    looked_up: list[Group]
    """Groups of micro-batches whose gradients wait for the optimizer, as the process has them."""
    by_one: bool
    """Whether one process serves all of the node's ranks."""

    @property
    def parameters(self) -> Weights:
        return self.weights

    def look_up(self, r: Recorder, group: Group, keys: Jagged) -> Tensor:
        values = keys.values if group.is_local else to_device(r, keys.values, HOST)
        every = self.every(group)
        pooled = []
        for weight, table in zip(self.weights, group.tables, strict=True):
            out = r.tensor((every.samples, table.dim), place=HOST)
            self.operator(r, every, table, (weight, values), out, "fwd")
            pooled.append(out)
        joined = r.tensor((every.samples, group.total_dim), place=HOST)
        r.leaf("aten::cat", (tuple(pooled), 1), joined)
        out = to_device(r, joined, r.place)
        if every.samples > group.samples:
            out, sent = r.tensor((group.samples, group.total_dim)), out
            _copied(r, group, out, sent)

        def backward(gradient: Tensor) -> Gradients:
            """Gradients of pooled rows to the host, and there per table to a sparse gradient."""
            if every.samples > group.samples:
                own, gradient = gradient, r.tensor((every.samples, group.total_dim))
                _copied(r, group, gradient, own)
            given = to_device(r, gradient, HOST)
            for table in group.tables:
                of_rows = r.tensor((table.lookups(every.samples), table.dim), place=HOST)
                self.operator(r, every, table, (given, values), of_rows, "bwd")
            self.looked_up.append(every)
            return [None]

        return r.track("HostOperatorsBackward", (self.weights[0],), out, backward)

    def finish(self, r: Recorder, run: Run) -> None:
        for group in self.looked_up:
            for weight, table in zip(self.weights, group.tables, strict=True):
                self.operator(r, group, table, (weight,), weight, "update")
        self.looked_up.clear()

    def every(self, group: Group) -> Group:
        """`group` with the samples that the process looks up."""
        is_shared = self.by_one and group.replicated
        return replace(group, samples=group.run.global_batch) if is_shared else group

    def operator(
        self,
        r: Recorder,
        group: Group,
        table: Table,
        given: tuple[Tensor, ...],
        out: Tensor,
        direction: str,
    ) -> None:
        """PyTorch's operator on one table, which the thread waits for."""
        dims = {
            "hash_size": float(table.rows),
            "dim": float(table.dim),
            "pooling": table.pooling,
            "batch": float(group.samples),
            "unique_rows": table.unique_rows(group.samples),
            PROCESSES: float(self.by_one and group.replicated),
        }
        with r.with_attributes({"direction": direction}):
            record_row_op(
                r, f"host_{OPERATOR}", given, out, stream=HOST_MEMORY, dims=dims, blocks=True
            )


def _copied(r: Recorder, group: Group, to: Tensor, source: Tensor) -> None:
    """One GPU's part of every table's pooled rows, from or to the first GPU."""
    for table in group.tables:
        shape, strides = (group.samples, table.dim), (table.dim, 1)
        copy(r, r.view(to, shape, strides), r.view(source, shape, strides), non_blocking=True)


@dataclass(frozen=True)
class OnDrives(Source):
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
        with r.with_attributes(prefetch_attributes(group)):
            values = keys.values if group.is_local else to_device(r, keys.values, HOST)
            given = (self.rows, values)
            _record(r, group, "storage_read", given, self.reads, missed)

    def look_up(self, r: Recorder, group: Group, keys: Jagged) -> Tensor:
        pooled = r.tensor((group.samples, group.total_dim), place=HOST)
        record_on_host(r, "host_pool", group, (self.cache, self.reads), pooled)
        out = to_device(r, pooled, r.place, non_blocking=True)

        def backward(gradient: Tensor) -> Gradients:
            """Gradients applied to rows in the cache; as many rows as came leave it for drives."""
            given, waits = (to_device(r, gradient, HOST), self.cache), group.waits_for_writes
            record_on_host(r, "host_apply", group, given, self.cache, waits)
            missed = _missed(group)
            if missed["rows"]:
                left = (self.cache,)
                _record(r, group, "storage_write", left, self.rows, missed, blocks=waits)
            return [None]

        return r.track("StoragePoolBackward", (self.rows,), out, backward)


def _record(
    r: Recorder,
    group: Group,
    op: str,
    inputs: tuple[Tensor, ...],
    out: Tensor,
    dims: dict[str, float],
    *,
    blocks: bool = False,
) -> None:
    """`op` where the group's rows are: on drives, or in expansion memory."""
    at = group.placed.tier
    about = dims | {"sharers": group.run.sharers} | ({"expansion": 1.0} if at == EXPANSION else {})
    record_row_op(r, op, inputs, out, stream=at, dims=about, blocks=blocks)


def _missed(group: Group) -> dict[str, float]:
    """Rows read from drives per step; without a cache, every distinct row."""
    if group.placed.caches:
        use = row_cache_use(group, group.placed.caches[0])
        return {"rows": use.missed_rows, "row_bytes": use.row_bytes}
    sizes = [row_bytes(table, group.placed.dtype) for table in group.tables]
    counts = [table.unique_rows(group.samples) for table in group.tables]
    total = sum(counts)
    mean = sum(size * count for size, count in zip(sizes, counts, strict=True)) / total
    return {"rows": total, "row_bytes": mean}


@dataclass(frozen=True)
class KernelCacheOverDrives(KernelCache):
    """See `source.Source`."""

    def fetch(self, r: Recorder, group: Group, keys: Jagged) -> None:
        """Rows that miss, from host memory or drives."""
        use = device_use(group)
        missed = round(use.missed_rows)
        with r.with_attributes(prefetch_attributes(group, FETCH_STREAM)):
            self.find(r, use, keys, 0.0)
        if not missed:
            return
        with r.with_attributes(prefetch_attributes(group)):
            self._bring(r, group, use, missed)
            if group.run.train:
                self._take(r, group, use, missed)

    def _bring(self, r: Recorder, group: Group, use: RowCacheUse, missed: int) -> None:
        wanted = to_device(r, r.tensor((missed,), "int64"), HOST, non_blocking=True)
        rows = r.tensor(self._shape(use, missed), group.placed.dtype, place=HOST)
        self._move(r, group, use, missed, ("host_gather", "storage_read"), (wanted,), rows)
        came = to_device(r, rows, r.place, non_blocking=True)
        places = r.tensor((missed,), "int64")
        r.leaf("aten::index_copy_", (self._places(r, use), 0, places, came), self.tables.weights)

    def _take(self, r: Recorder, group: Group, use: RowCacheUse, missed: int) -> None:
        """Rows that leave the device, and those that leave the host for the drives."""
        given = (self._places(r, use), 0, r.tensor((missed,), "int64"))
        rows = r.made("aten::index_select", given, self._shape(use, missed), group.placed.dtype)
        there = (to_device(r, rows, HOST, non_blocking=True),)
        ops = ("host_scatter", "storage_write")
        self._move(r, group, use, missed, ops, there, self.host_rows)

    def _move(
        self,
        r: Recorder,
        group: Group,
        use: RowCacheUse,
        missed: int,
        ops: tuple[str, str],
        given: tuple[Tensor, ...],
        out: Tensor,
    ) -> None:
        """`missed` rows, by `ops` of host memory and of what lies behind it."""
        behind, size = _read_rows(group, missed), {"row_bytes": use.row_bytes}
        if missed > behind:
            dims = {"lookups": float(missed - behind), **size}
            record_row_op(r, ops[0], given, out, stream=HOST_MEMORY, dims=dims)
        if behind:
            reads = ops[1] == "storage_read"
            given = (self.host_rows, *given) if reads else given
            _record(r, group, ops[1], given, out, {"rows": float(behind), **size})

    def _places(self, r: Recorder, use: RowCacheUse) -> Tensor:
        weights = self.tables.weights
        width = self._shape(use, 1)[1]
        return r.view(weights, (max(weights.shape[0] // width, 1), width), (width, 1))

    def _shape(self, use: RowCacheUse, rows: int) -> tuple[int, int]:
        item_bytes = 2 if self.tables.weights.dtype in ("fp16", "bf16") else 4
        return rows, max(round(use.row_bytes / item_bytes), 1)


def _read_rows(group: Group, missed: int) -> int:
    """Of the rows that miss in device memory, those that host memory has not either."""
    if len(group.placed.caches) == 1:
        return missed
    return min(round(row_cache_use(group, group.placed.caches[1]).missed_rows), missed)


@TIERED.register("host")
def host_tables(r: Recorder, group: Group) -> Source:
    """Weights in host memory, with a cache or hot rows in the device's or none."""
    placed, dtype = group.placed, group.placed.dtype
    if placed.hot_rows:
        return hot_rows(r, group)
    if placed.pooled_on == "host":
        elements = sum(table.rows * table.dim for table in group.tables)
        return PooledOnHost(r.tensor((elements,), dtype, place=HOST))
    if placed.pooled_on != "device":
        shapes = [(table.rows, table.dim) for table in group.tables]
        weights = tuple(r.tensor(shape, dtype, place=HOST) for shape in shapes)
        return OperatorsOnHost(weights, [], by_one=placed.pooled_on == "one_process")
    if not placed.caches:
        return tables_over_bus(r, group)
    by_kernels = device_use(group).cache.kept_by == "kernels"
    return (KernelCache if by_kernels else OperatorCache).of(r, group)


@TIERED.register(STORAGE, EXPANSION)
def stored_tables(r: Recorder, group: Group) -> Source:
    """Rows on drives or in expansion memory. Tensors stand for those pooled by the host: what they
    take, the placement's tiers say (`memory_tiers`), so that a machine of CPUs has them once."""
    if group.placed.pooled_on == "device":
        return KernelCacheOverDrives.of(r, group)
    dtype = group.placed.dtype
    rows, cache = (r.tensor((1,), dtype, place=HOST) for _ in range(2))
    return OnDrives(rows, cache, r.tensor((group.lookups,), dtype, place=HOST))
