"""Matrix products: two products for each, one per operand that needs a gradient."""

from __future__ import annotations

from perfmodel.graph.ops import Tensor
from perfmodel.workload.autograd.tape import Gradients, Node, rule
from perfmodel.workload.eager.products import bmm, mm
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.eager.views import t, transpose


@rule("aten::addmm", "AddmmBackward0")
def _addmm(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    (gradient,) = gradients
    assert gradient is not None
    x, y = node.saved
    _, wants_x, wants_y = node.wants
    return [
        gradient,
        _left(r, gradient, x, y) if wants_x else None,
        _right(r, gradient, x, y) if wants_y else None,
    ]


@rule("aten::mm", "MmBackward0")
def _mm(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    (gradient,) = gradients
    assert gradient is not None
    x, y = node.saved
    wants_x, wants_y = node.wants
    right = _right(r, gradient, x, y) if wants_y else None
    return [_left(r, gradient, x, y) if wants_x else None, right]


@rule("aten::bmm", "BmmBackward0")
def _bmm(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    (gradient,) = gradients
    assert gradient is not None
    x, y = node.saved
    right = bmm(r, transpose(r, x, 1, 2), gradient)
    return [bmm(r, gradient, transpose(r, y, 1, 2)), right]


def _left(r: Recorder, gradient: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The gradient of `x`, in the layout of `x`."""
    if _is_column_major(x):
        return t(r, mm(r, y, t(r, gradient)))
    return mm(r, gradient, t(r, y))


def _right(r: Recorder, gradient: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The gradient of `y`, in the layout of `y`: of a transposed weight, transposed."""
    if _is_column_major(y):
        return t(r, mm(r, t(r, gradient), x))
    return mm(r, t(r, x), gradient)


def _is_column_major(x: Tensor) -> bool:
    return x.strides == (1, x.shape[0])
