"""Tables in host memory, each looked up and updated by PyTorch's operators for CPUs.

What it stands for: one `nn.EmbeddingBag(sparse=True)` per table and `torch.optim.SGD` on the CPU,
in a model whose dense part is on GPUs: the thread that trains runs an operator per table, forward,
for the sparse gradient and for the update, and sends pooled rows and their gradients from and to
pageable memory, all tables' at once. Other optimizers than SGD cost more than this.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.graph.ops import Tensor
from perfmodel.workload.autograd.tape import Gradients, Node, rule, track
from perfmodel.workload.eager.creation import to_device
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.parts.jagged import Jagged
from perfmodel.workload.run import Run
from perfmodel.workload.tables import Table
from perfmodel.workload.tiered.beside import HOST_MEMORY, beside
from perfmodel.workload.tiered.source import TIERED, Group

HOST = "cpu"
LOOK_UP = "tier::host_operators"
Weights = tuple[Tensor, ...]


@dataclass(frozen=True)
class OnHostByOperators:
    """See `source.Source`, `source.Shared`."""

    weights: Weights
    looked_up: list[Group]
    """Groups of micro-batches whose gradients wait for the optimizer."""

    @property
    def parameters(self) -> Weights:
        return self.weights

    def fetch(self, r: Recorder, group: Group, keys: Jagged) -> None:
        """Nothing: rows stay where they are."""

    def look_up(self, r: Recorder, group: Group, keys: Jagged) -> Tensor:
        values = keys.values if group.is_local else to_device(r, keys.values, HOST)
        pooled = []
        for weight, table in zip(self.weights, group.tables, strict=True):
            out = r.tensor((group.samples, table.dim), place=HOST)
            _operator(r, group, table, (weight, values), out, "fwd")
            pooled.append(out)
        joined = r.tensor((group.samples, group.total_dim), place=HOST)
        r.leaf("aten::cat", (tuple(pooled), 1), joined)
        out = to_device(r, joined, r.place)
        track(r, LOOK_UP, (self.weights[0],), out, self, values, group)
        return out

    def finish(self, r: Recorder, run: Run) -> None:
        for group in self.looked_up:
            for weight, table in zip(self.weights, group.tables, strict=True):
                _operator(r, group, table, (weight,), weight, "update")
        self.looked_up.clear()


@rule(LOOK_UP, "HostOperatorsBackward")
def _backward(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    """Gradients of pooled rows to the host, and there per table to a sparse gradient."""
    (gradient,) = gradients
    assert gradient is not None
    source, values, group = node.saved
    given = to_device(r, gradient, HOST)
    for table in group.tables:
        out = r.tensor((table.lookups(group.samples), table.dim), place=HOST)
        _operator(r, group, table, (given, values), out, "bwd")
    source.looked_up.append(group)
    return [None]


def _operator(
    r: Recorder,
    group: Group,
    table: Table,
    given: tuple[Tensor, ...],
    out: Tensor,
    direction: str,
) -> None:
    dims = {
        "hash_size": float(table.rows),
        "dim": float(table.dim),
        "pooling": table.pooling,
        "batch": float(group.samples),
        "unique_rows": table.unique_rows(group.samples),
    }
    with r.with_attributes({"direction": direction}):
        beside(r, "host_embedding_bag", given, out, stream=HOST_MEMORY, dims=dims, blocks=True)


@TIERED.register("host_operators")
def on_host(r: Recorder, group: Group) -> OnHostByOperators:
    """Weights in host memory."""
    dtype = group.placed.dtype
    weights = tuple(r.tensor((table.rows, table.dim), dtype, place=HOST) for table in group.tables)
    return OnHostByOperators(weights, [])
