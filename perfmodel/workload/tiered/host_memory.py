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
from perfmodel.workload.eager.creation import copy, to_device
from perfmodel.workload.eager.recorder import Gradients, Node, Recorder, rule_of_one, track
from perfmodel.workload.jagged import Jagged, record_row_op
from perfmodel.workload.step import Run
from perfmodel.workload.tables import Table, row_bytes
from perfmodel.workload.tiered.device_kernels import FETCH_STREAM, KernelCache, device_use
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
POOL = "tier::host_pool"


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
        track(r, POOL, (self.weights,), out, self.weights, values, group)
        return out


@rule_of_one(POOL, "HostPoolBackward")
def _pooled_backward(r: Recorder, node: Node, gradient: Tensor) -> Gradients:
    """Gradients of pooled rows to the host, which applies them to the rows."""
    weights, values, group = node.saved
    given = (to_device(r, gradient, HOST), values, weights)
    record_on_host(r, "host_apply", group, given, weights, group.waits_for_writes)
    return [None]


@TIERED.register("host_pooled")
def pooled_tables(r: Recorder, group: Group) -> PooledOnHost:
    """Weights in host memory."""
    elements = sum(table.rows * table.dim for table in group.tables)
    return PooledOnHost(r.tensor((elements,), group.placed.dtype, place=HOST))


LOOK_UP = "tier::host_operators"
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
        track(r, LOOK_UP, (self.weights[0],), out, self, values, group)
        return out

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


@rule_of_one(LOOK_UP, "HostOperatorsBackward")
def _operators_backward(r: Recorder, node: Node, gradient: Tensor) -> Gradients:
    """Gradients of pooled rows to the host, and there per table to a sparse gradient."""
    source, values, group = node.saved
    every = source.every(group)
    if every.samples > group.samples:
        own, gradient = gradient, r.tensor((every.samples, group.total_dim))
        _copied(r, group, gradient, own)
    given = to_device(r, gradient, HOST)
    for table in group.tables:
        out = r.tensor((table.lookups(every.samples), table.dim), place=HOST)
        source.operator(r, every, table, (given, values), out, "bwd")
    source.looked_up.append(every)
    return [None]


def _copied(r: Recorder, group: Group, to: Tensor, source: Tensor) -> None:
    """One GPU's part of every table's pooled rows, from or to the first GPU."""
    for table in group.tables:
        shape, strides = (group.samples, table.dim), (table.dim, 1)
        copy(r, r.view(to, shape, strides), r.view(source, shape, strides), non_blocking=True)


def _weights(r: Recorder, group: Group) -> Weights:
    dtype = group.placed.dtype
    return tuple(r.tensor((table.rows, table.dim), dtype, place=HOST) for table in group.tables)


@TIERED.register("host_operators")
def operator_tables(r: Recorder, group: Group) -> OperatorsOnHost:
    """A process per GPU."""
    return OperatorsOnHost(_weights(r, group), [], by_one=False)


@TIERED.register("host_one_process")
def one_process_tables(r: Recorder, group: Group) -> OperatorsOnHost:
    """One process for all GPUs of a node."""
    return OperatorsOnHost(_weights(r, group), [], by_one=True)


STORED_POOL = "tier::storage_pool"


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
        track(r, STORED_POOL, (self.rows,), out, self, group)
        return out


@rule_of_one(STORED_POOL, "StoragePoolBackward")
def _stored_backward(r: Recorder, node: Node, gradient: Tensor) -> Gradients:
    """Gradients applied to rows in the cache; as many rows as came leave it for the drives."""
    source, group = node.saved
    given, waits = (to_device(r, gradient, HOST), source.cache), group.waits_for_writes
    record_on_host(r, "host_apply", group, given, source.cache, waits)
    missed = _missed(group)
    if missed["rows"]:
        left = (source.cache,)
        _record(r, group, "storage_write", left, source.rows, missed, blocks=waits)
    return [None]


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


def _on_drives(r: Recorder, group: Group) -> OnDrives:
    """Tensors that stand for the rows there and in the cache: what those take, the placement's
    tiers say (`memory_tiers`), so that a machine of CPUs has them once."""
    dtype = group.placed.dtype
    rows, cache = (r.tensor((1,), dtype, place=HOST) for _ in range(2))
    return OnDrives(rows, cache, r.tensor((group.lookups,), dtype, place=HOST))


for _tier in (STORAGE, EXPANSION):
    TIERED.register(f"{_tier}_pooled")(_on_drives)
    TIERED.register(f"{_tier}_pooled/host")(_on_drives)


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
        read = _read_rows(group, missed)
        if missed > read:
            dims = {"lookups": float(missed - read), "row_bytes": use.row_bytes}
            record_row_op(r, "host_gather", (wanted,), rows, stream=HOST_MEMORY, dims=dims)
        if read:
            dims = {"rows": float(read), "row_bytes": use.row_bytes}
            _record(r, group, "storage_read", (self.host_rows, wanted), rows, dims)
        came = to_device(r, rows, r.place, non_blocking=True)
        places = r.tensor((missed,), "int64")
        r.leaf("aten::index_copy_", (self._places(r, use), 0, places, came), self.tables.weights)

    def _take(self, r: Recorder, group: Group, use: RowCacheUse, missed: int) -> None:
        """Rows that leave the device, and those that leave the host for the drives."""
        leaving = r.tensor((missed,), "int64")
        rows = r.tensor(self._shape(use, missed), group.placed.dtype)
        r.leaf("aten::index_select", (self._places(r, use), 0, leaving), rows)
        there = to_device(r, rows, HOST, non_blocking=True)
        written = _read_rows(group, missed)
        if missed > written:
            dims = {"lookups": float(missed - written), "row_bytes": use.row_bytes}
            rows = self.host_rows
            record_row_op(r, "host_scatter", (there,), rows, stream=HOST_MEMORY, dims=dims)
        if written:
            dims = {"rows": float(written), "row_bytes": use.row_bytes}
            _record(r, group, "storage_write", (there,), self.host_rows, dims)

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


for _tier in (STORAGE, EXPANSION):
    TIERED.register(f"{_tier}/hbm")(KernelCacheOverDrives.of)
    TIERED.register(f"{_tier}/hbm/host")(KernelCacheOverDrives.of)
