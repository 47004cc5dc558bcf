"""Elementwise operators and losses."""

from __future__ import annotations

from perfmodel.graph.ops import Tensor
from perfmodel.workload.autograd.tape import Gradients, Node, rule
from perfmodel.workload.eager.creation import empty_like, to_dtype, zero
from perfmodel.workload.eager.losses import MEAN
from perfmodel.workload.eager.pointwise import mul, scalar_in_place
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.eager.views import CONTIGUOUS, squeeze


@rule("aten::relu", "ReluBackward0")
def _relu(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    return [_from(r, "aten::threshold_backward", gradients[0], node.saved[0], 0)]


@rule("aten::sigmoid", "SigmoidBackward0")
def _sigmoid(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    return [_from(r, "aten::sigmoid_backward", gradients[0], node.saved[0])]


@rule("aten::add", "AddBackward0")
def _add(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    return [gradients[0], gradients[0]]


@rule("aten::mul", "MulBackward0")
def _mul(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    (gradient,) = gradients
    assert gradient is not None
    x, y = node.saved
    return [
        mul(r, gradient, other) if wanted else None
        for other, wanted in zip((y, x), node.wants, strict=True)
    ]


@rule("aten::_to_copy", "ToCopyBackward0")
def _to_copy(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    (gradient,) = gradients
    return [gradient and to_dtype(r, gradient, node.inputs[0].dtype)]


@rule("aten::binary_cross_entropy", "BinaryCrossEntropyBackward0")
def _bce(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    (gradient,) = gradients
    assert gradient is not None
    x, target = node.saved
    r.begin("aten::binary_cross_entropy_backward", gradient, x, target, None, MEAN)
    out = empty_like(r, x, None)
    for operand in (out, gradient, x, target):
        squeeze(r, operand)
    scalar_in_place(r, "aten::div_", out, out.elements)
    r.end(out)
    return [out]


@rule("aten::binary_cross_entropy_with_logits", "BinaryCrossEntropyWithLogitsBackward0")
def _bce_with_logits(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    x, target = node.saved
    out = r.tensor(x.shape, x.dtype)
    r.leaf("aten::sigmoid", (x,), out)
    r.leaf("aten::sub_", (out, target, 1), out)
    r.leaf("aten::mul_", (out, gradients[0]), out)
    scalar_in_place(r, "aten::div_", out, out.elements)
    return [out]


@rule("aten::mse_loss", "MseLossBackward0")
def _mse(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    x, target = node.saved
    r.begin("aten::mse_loss_backward", gradients[0], x, target, MEAN)
    out = empty_like(r, x, CONTIGUOUS)
    zero(r, out)
    r.end(out)
    return [out]


def _from(r: Recorder, name: str, gradient: Tensor | None, saved: Tensor, *rest: int) -> Tensor:
    out = r.tensor(saved.shape, saved.dtype)
    r.leaf(name, (gradient, r.view(saved, saved.shape, saved.strides), *rest), out)
    return out
