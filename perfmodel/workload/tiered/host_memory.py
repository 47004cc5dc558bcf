"""Tables in host memory that the host pools and updates: at once, or by an operator per table.

At once: an `nn.EmbeddingBag` on the CPU in a model whose dense part is on GPUs. The training thread
waits for the lookup and sends the pooled rows; backward waits for their gradients.

By operators: one `nn.EmbeddingBag(sparse=True)` per table and `torch.optim.SGD` on the CPU. The
training thread runs an operator per table in forward, for the sparse gradient and for the update;
pooled rows and their gradients are copied from and to pageable memory, all tables at once.
Optimizers other than SGD cost more than this.

Either every GPU has a process, and a share of the cores, or one process on all cores serves all
GPUs of a node: it looks up the whole batch, sends it to the first GPU, and copies each GPU's part
from there, table by table; gradients come back the same way. In such a process the threads of all
GPUs take turns in Python, which is left out, and so is copying the dense parameters in each step.

Source of the one process: `mixed_forward` in DLRM/dlrm_baseline_cpu_gpu.py of
STAR-Laboratory/Accelerating-RecSys-Training.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from perfmodel.ops.graph import Tensor
from perfmodel.ops.vocabulary.tiers import OPERATOR, PROCESSES
from perfmodel.workload.eager.creation import copy, to_device
from perfmodel.workload.eager.recorder import Gradients, Node, Recorder, rule_of_one, track
from perfmodel.workload.jagged import Jagged, record_row_op
from perfmodel.workload.step import Run
from perfmodel.workload.tables import Table
from perfmodel.workload.tiered.source import HOST_MEMORY, TIERED, Group, record_on_host

HOST = "cpu"
POOL = "tier::host_pool"


@dataclass(frozen=True)
class PooledOnHost:
    """See `source.Source`."""

    weights: Tensor

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        return (self.weights,)

    def fetch(self, r: Recorder, group: Group, keys: Jagged) -> None:
        """Nothing: rows stay where they are."""

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
class OperatorsOnHost:
    """See `source.Source`, `source.Shared`."""

    weights: Weights
    looked_up: list[Group]
    """Groups of micro-batches whose gradients wait for the optimizer, as the process has them."""
    by_one: bool
    """Whether one process serves all of the node's ranks."""

    @property
    def parameters(self) -> Weights:
        return self.weights

    def fetch(self, r: Recorder, group: Group, keys: Jagged) -> None:
        """Nothing: rows stay where they are."""

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
