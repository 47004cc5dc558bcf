"""Tables in host memory whose rows the host gathers, pools and updates; pooled rows travel.

What it stands for: `nn.EmbeddingBag` on the CPU in a model whose dense part is on GPUs. The thread
that trains waits for the lookup, sends the pooled rows, and backward waits for their gradients.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.graph.ops import Tensor
from perfmodel.workload.autograd.tape import Gradients, Node, rule, track
from perfmodel.workload.eager.creation import to_device
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.parts.jagged import Jagged
from perfmodel.workload.tiered.beside import HOST_MEMORY, beside, row_dims
from perfmodel.workload.tiered.source import TIERED, Group

HOST = "cpu"
POOL = "tier::host_pool"


@dataclass(frozen=True)
class OnHost:
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
        given = (self.weights, values)
        beside(r, "host_pool", given, pooled, stream=HOST_MEMORY, dims=row_dims(group), blocks=True)
        out = to_device(r, pooled, r.place, non_blocking=True)
        track(r, POOL, (self.weights,), out, self.weights, values, group)
        return out


@rule(POOL, "HostPoolBackward")
def _backward(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    """Gradients of pooled rows to the host, which applies them to the rows."""
    (gradient,) = gradients
    assert gradient is not None
    weights, values, group = node.saved
    given = to_device(r, gradient, HOST)
    pipeline = group.run.pipeline
    waits = pipeline is None or not pipeline.writes_behind
    beside(
        r,
        "host_apply",
        (given, values, weights),
        weights,
        stream=HOST_MEMORY,
        dims=row_dims(group),
        blocks=waits,
    )
    return [None]


@TIERED.register("host_pooled")
def on_host(r: Recorder, group: Group) -> OnHost:
    """Weights in host memory."""
    elements = sum(table.rows * table.dim for table in group.tables)
    return OnHost(r.tensor((elements,), group.placed.dtype, place=HOST))
