"""Tables in host memory that the host pools and updates, or on drives.

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

On drives, behind a cache in host memory: software-defined memory (Ardestani
et al. 2021). Rows that the cache has not are read asynchronously, all tables' at once, then pooled
with those that it has; pooled rows travel to the device. Updates go to the cache and, as rows leave
it, to the drives.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from perfmodel.embedding.placement import STORAGE
from perfmodel.lowering.arguments import HOST
from perfmodel.ops.graph import Tensor
from perfmodel.ops.vocabulary.embedding import HOST_MEMORY, OPERATOR, PROCESSES
from perfmodel.workload.eager.calls import Gradients
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.jagged import Jagged, record_row_op
from perfmodel.workload.step import Run
from perfmodel.workload.tables import Table, row_bytes
from perfmodel.workload.tiered.device_kernels import (
    DeviceTables,
    KernelCache,
    OperatorCache,
    device_use,
    table_batched,
)
from perfmodel.workload.tiered.hot_rows import hot_rows
from perfmodel.workload.tiered.source import (
    TIERED,
    Group,
    Source,
    prefetch_attributes,
    row_cache_use,
    row_dims,
)


@dataclass(frozen=True)
class PooledOnHost(Source):
    """Rows in host memory, of all tables at once."""

    weights: Tensor

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        return (self.weights,)

    def look_up(self, r: Recorder, group: Group, keys: Jagged) -> Tensor:
        given = (self.weights, self.found(r, group, keys))
        pooled = r.tensor((group.samples, group.total_dim), place=HOST)
        on_host = partial(record_row_op, r, stream=HOST_MEMORY, dims=row_dims(group))
        on_host("host_pool", given, pooled, blocks=True)
        out = r.to_device(pooled, r.place, non_blocking=True)

        def backward(gradient: Tensor) -> Gradients:
            """Gradients of pooled rows to the host, which applies them to the rows."""
            came = (r.to_device(gradient, HOST), *given)
            on_host("host_apply", came, self.weights, blocks=not group.run.pipeline.writes_behind)
            self.write_back(r, group)
            return [None]

        return r.track("HostPoolBackward", self.parameters, out, backward)

    def found(self, r: Recorder, group: Group, keys: Jagged) -> Tensor:
        return host_keys(r, group, keys)

    def write_back(self, r: Recorder, group: Group) -> None:
        """Changed rows to where they belong."""


def host_keys(r: Recorder, group: Group, keys: Jagged) -> Tensor:
    """The keys in host memory, where those of the rank's own samples are."""
    is_local = group.replicated or group.run.ranks == 1
    return keys.values if is_local else r.to_device(keys.values, HOST)


@dataclass(frozen=True)
class OnDrives(PooledOnHost):
    """`weights` are the cache; `reads`: of the last fetch, what the lookup waits for."""

    rows: Tensor
    reads: Tensor

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        return (self.rows,)

    def fetch(self, r: Recorder, group: Group, keys: Jagged) -> None:
        missed = _missed(group)
        if missed["rows"]:
            with r.with_attributes(prefetch_attributes(group)):
                given = (self.rows, host_keys(r, group, keys))
                record_row_op(r, "storage_read", given, self.reads, stream=STORAGE, dims=missed)

    def found(self, r: Recorder, group: Group, keys: Jagged) -> Tensor:
        return self.reads

    def write_back(self, r: Recorder, group: Group) -> None:
        """As many rows as came leave the cache for drives."""
        missed, waits = _missed(group), not group.run.pipeline.writes_behind
        if missed["rows"]:
            about: dict[str, Any] = {"stream": STORAGE, "dims": missed, "blocks": waits}
            record_row_op(r, "storage_write", (self.weights,), self.rows, **about)


@dataclass(frozen=True)
class OperatorsOnHost(Source):
    weights: tuple[Tensor, ...]
    looked_up: list[Group]
    """Groups of micro-batches whose gradients wait for the optimizer, as the process has them."""
    by_one: bool  # whether one process serves all of the node's ranks

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        return self.weights

    def look_up(self, r: Recorder, group: Group, keys: Jagged) -> Tensor:
        values = host_keys(r, group, keys)
        every, pooled = group, []
        if self.by_one and group.replicated:  # the process looks up all ranks' samples
            every = replace(group, samples=group.run.global_batch)
        for weight, table in zip(self.weights, group.tables, strict=True):
            pooled.append(r.tensor((every.samples, table.dim), place=HOST))
            self.operator(r, every, table, (weight, values), pooled[-1], "fwd")
        joined = r.tensor((every.samples, group.total_dim), place=HOST)
        r.leaf("aten::cat", (tuple(pooled), 1), joined)
        out = r.to_device(joined, r.place)
        if every.samples > group.samples:
            out, sent = r.tensor((group.samples, group.total_dim)), out
            _copied(r, group, out, sent)

        def backward(gradient: Tensor) -> Gradients:
            """Gradients of pooled rows to the host, and there per table to a sparse gradient."""
            if every.samples > group.samples:
                own, gradient = gradient, r.tensor((every.samples, group.total_dim))
                _copied(r, group, gradient, own)
            given = r.to_device(gradient, HOST)
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
        name, blocks = f"host_{OPERATOR}", True
        with r.with_attributes({"direction": direction}):
            record_row_op(r, name, given, out, stream=HOST_MEMORY, dims=dims, blocks=blocks)


def _copied(r: Recorder, group: Group, to: Tensor, source: Tensor) -> None:
    """One GPU's part of every table's pooled rows, from or to the first GPU."""
    for table in group.tables:
        shape, strides = (group.samples, table.dim), (table.dim, 1)
        r.copy(r.view(to, shape, strides), r.view(source, shape, strides), non_blocking=True)


def _missed(group: Group) -> dict[str, float]:
    """Rows read from drives per step; without a cache, every distinct row."""
    if group.placed.caches:
        use = row_cache_use(group, group.placed.caches[0])
        return {"rows": use.missed_rows, "row_bytes": use.row_bytes, "sharers": group.run.sharers}
    sizes = [row_bytes(table, group.placed.dtype) for table in group.tables]
    counts = [table.unique_rows(group.samples) for table in group.tables]
    mean = float(np.average(sizes, weights=counts))
    return {"rows": sum(counts), "row_bytes": mean, "sharers": group.run.sharers}


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
        tables = table_batched(r, group)  # the operator of device memory, its weights on the host
        on_host = r.tensor(tables.weights.shape, tables.weights.dtype, place=HOST)
        return DeviceTables(replace(tables, weights=on_host))
    by_kernels = device_use(group).cache.kept_by == "kernels"
    return (KernelCache if by_kernels else OperatorCache).of(r, group)


@TIERED.register(STORAGE)
def stored_tables(r: Recorder, group: Group) -> Source:
    """Rows on drives, pooled by the host. What their tensors take, the placement's tiers say
    (`memory_tiers`), so that a machine of CPUs has them once."""
    dtype = group.placed.dtype
    rows, cache = (r.tensor((1,), dtype, place=HOST) for _ in range(2))
    return OnDrives(cache, rows, r.tensor((group.lookups,), dtype, place=HOST))
