"""Views: the gradient is seen the other way round."""

from __future__ import annotations

from perfmodel.workload.autograd.tape import Gradients, Node, rule
from perfmodel.workload.eager.creation import copy, zero
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.eager.views import narrow, reshape, select, squeeze, t, transpose, unsqueeze


@rule("aten::t", "TBackward0")
def _t(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    (gradient,) = gradients
    return [gradient and t(r, gradient)]


@rule("aten::transpose", "TransposeBackward0")
def _transpose(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    (gradient,) = gradients
    first, second = node.saved
    return [gradient and transpose(r, gradient, first, second)]


@rule("aten::reshape", "ViewBackward0")
def _reshape(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    (gradient,) = gradients
    return [gradient and reshape(r, gradient, node.inputs[0].shape)]


@rule("aten::unsqueeze", "UnsqueezeBackward0")
def _unsqueeze(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    (gradient,) = gradients
    return [gradient and squeeze(r, gradient, node.saved[0])]


@rule("aten::squeeze", "SqueezeBackward1")
def _squeeze(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    (gradient,) = gradients
    return [gradient and unsqueeze(r, gradient, node.saved[0] % len(node.inputs[0].shape))]


@rule("aten::select", "SelectBackward0")
def _select(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    """Zeros, and the gradient in its place among them."""
    (gradient,) = gradients
    assert gradient is not None
    dim, index = node.saved
    out = r.tensor(node.inputs[0].shape, gradient.dtype)
    zero(r, out)
    copy(r, select(r, out, dim, index), gradient)
    return [out]


@rule("aten::cat", "CatBackward0")
def _cat(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    (gradient,) = gradients
    assert gradient is not None
    (dim,) = node.saved
    parts, start = [], 0
    for x, wanted in zip(node.inputs, node.wants, strict=True):
        length = x.shape[dim]
        parts.append(narrow(r, gradient, dim, start, length) if wanted else None)
        start += length
    return parts


@rule("aten::stack", "StackBackward0")
def _stack(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    (gradient,) = gradients
    assert gradient is not None
    (dim,) = node.saved
    return [select(r, gradient, dim, number) for number in range(len(node.inputs))]
