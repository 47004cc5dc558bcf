"""What autograd keeps of a forward pass: a node per differentiable op, and who feeds it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from perfmodel.graph.ops import Tensor
from perfmodel.registry import Registry

if TYPE_CHECKING:
    from perfmodel.workload.eager.recorder import Recorder

LEAF_SEQUENCE = 1 << 62
"""Gradients of parameters are accumulated before anything else that is ready."""
ACCUMULATE = "torch::autograd::AccumulateGrad"

Gradients: TypeAlias = "Sequence[Tensor | None]"


@dataclass(slots=True, eq=False)
class Node:
    """One node of the backward graph. `wants` tells which inputs of the op need a gradient."""

    name: str
    sequence: int
    saved: tuple[Any, ...] = ()
    inputs: tuple[Tensor, ...] = ()
    next: tuple[tuple[Node, int] | None, ...] = ()
    rule: Backward | None = None
    outputs: int = 1
    gradients: dict[int, Tensor] = field(default_factory=dict)
    waiting: int = 0

    @property
    def wants(self) -> tuple[bool, ...]:
        return tuple(edge is not None for edge in self.next)


Backward: TypeAlias = "Callable[[Recorder, Node, Gradients], Gradients]"
"""Records what the node runs; from the gradients of its outputs to those of its inputs."""


@dataclass(frozen=True)
class Rule:
    """How one forward op is differentiated: the name of its node, and what that runs."""

    node: str
    backward: Backward


AUTOGRAD: Registry[Rule] = Registry(
    "autograd rule", "perfmodel.autograd", "perfmodel.workload.autograd.rules"
)
"""By the name of the forward op."""


def rule(op: str, node: str) -> Callable[[Backward], Backward]:
    """File the decorated function as the backward of `op`; PyTorch calls its node `node`."""

    def add(backward: Backward) -> Backward:
        AUTOGRAD.register(op)(Rule(node, backward))
        return backward

    return add


class Tape:
    """Which node made each tensor; parameters have a node that accumulates their gradient."""

    def __init__(self) -> None:
        self._made_by: dict[int, tuple[Node, int]] = {}
        self._sequence = 0

    def parameter(self, tensor: Tensor) -> Tensor:
        """From now on `tensor` gets a gradient."""
        node = Node(ACCUMULATE, LEAF_SEQUENCE, inputs=(tensor,))
        self._made_by[tensor.tensor_id] = (node, 0)
        return tensor

    def maker(self, tensor: Tensor) -> tuple[Node, int] | None:
        """The node that a gradient of `tensor` goes to, or None where it needs none."""
        return self._made_by.get(tensor.tensor_id)

    def add(
        self,
        op: str,
        inputs: tuple[Tensor, ...],
        outputs: tuple[Tensor, ...],
        saved: tuple[Any, ...],
        node_name: str = "",
    ) -> None:
        """`op` made `outputs` of `inputs`; `node_name` where the rule's own does not say it."""
        edges = tuple(self._made_by.get(x.tensor_id) for x in inputs)
        if not any(edges):
            return
        found = AUTOGRAD[op]
        self._sequence += 1
        name = node_name or found.node
        node = Node(name, self._sequence, saved, inputs, edges, found.backward, len(outputs))
        for number, output in enumerate(outputs):
            self._made_by[output.tensor_id] = (node, number)


def track(r: Recorder, op: str, inputs: tuple[Tensor, ...], output: Tensor, *saved: Any) -> None:
    """Tell the tape of `r`, where it has one, that `op` made `output` of `inputs`."""
    if r.tape is not None:
        r.tape.add(op, inputs, (output,), saved)
