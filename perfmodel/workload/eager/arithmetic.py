"""Elementwise operators, matrix products and losses, with their gradients."""

from __future__ import annotations

from collections.abc import Callable

from perfmodel.ops.graph import Tensor
from perfmodel.workload.eager.recorder import Recorder

Both = list[Tensor | None]
"""Gradients of two operands, None for one that needs none."""


def relu(r: Recorder, x: Tensor) -> Tensor:
    out, name = r.made_like(x, "aten::relu", x), "aten::threshold_backward"
    return r.track("ReluBackward0", (x,), out, lambda g: [r.made_like(x, name, g, out, 0)])


def sigmoid(r: Recorder, x: Tensor) -> Tensor:
    out, name = r.made_like(x, "aten::sigmoid", x), "aten::sigmoid_backward"
    return r.track("SigmoidBackward0", (x,), out, lambda g: [r.made_like(x, name, g, out)])


def add(r: Recorder, x: Tensor, y: Tensor) -> Tensor:
    out = r.made("aten::add", (x, y, 1), x.shape, x.dtype)
    return r.track("AddBackward0", (x, y), out, lambda g: [g, g])


def mul(r: Recorder, x: Tensor, y: Tensor) -> Tensor:
    out = r.made("aten::mul", (x, y), x.shape, x.dtype)
    wanted = r.needs_gradient(x), r.needs_gradient(y)

    def backward(gradient: Tensor) -> Both:
        pairs = zip((y, x), wanted, strict=True)
        return [mul(r, gradient, other) if wants else None for other, wants in pairs]

    return r.track("MulBackward0", (x, y), out, backward)


def dropout(r: Recorder, x: Tensor) -> Tensor:
    """Some elements of x, scaled; which ones stays as a mask of bytes."""
    out, mask, name = r.like(x), r.tensor(x.shape, "bool"), "aten::native_dropout"
    r.leaf(name, (x,), out, mask)
    node, back = "NativeDropoutBackward0", f"{name}_backward"
    return r.track(node, (x,), out, lambda g: [r.made_like(g, back, g, mask)])


def linear(r: Recorder, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x `[m, k]` times weight `[n, k]` transposed, plus bias `[n]`."""
    r.begin("aten::linear", x, weight, bias)
    out = addmm(r, bias, x, r.t(weight))
    r.end(out)
    return out


def quantised_linear(r: Recorder, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`linear` of 16-bit x and one-byte weight: x rounded per row, its product scaled back."""
    shape = (x.shape[0], weight.shape[0])
    return r.made("quantised::linear", (x, weight, bias), shape, x.dtype)


def addmm(r: Recorder, bias: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """bias `[n]` plus x `[m, k]` times y `[k, n]`."""
    shape = (x.shape[0], y.shape[1])
    out = r.made("aten::addmm", (bias, x, y, 1, 1), shape, x.dtype)
    of_operands = _product_backward(r, x, y)
    return r.track("AddmmBackward0", (bias, x, y), out, lambda g: [g, *of_operands(g)])


def mm(r: Recorder, x: Tensor, y: Tensor) -> Tensor:
    """x `[m, k]` times y `[k, n]`."""
    out = r.made("aten::mm", (x, y), (x.shape[0], y.shape[1]), x.dtype)
    return r.track("MmBackward0", (x, y), out, _product_backward(r, x, y, right_first=True))


def _product_backward(
    r: Recorder, x: Tensor, y: Tensor, *, right_first: bool = False
) -> Callable[[Tensor], Both]:
    """The gradients of both operands, each in its operand's layout: of a transposed weight,
    transposed. `right_first`: that of the second is computed first."""
    wanted = r.needs_gradient(x), r.needs_gradient(y)

    def of_x(gradient: Tensor) -> Tensor:
        if x.strides == (1, x.shape[0]):
            return r.t(mm(r, y, r.t(gradient)))
        return mm(r, gradient, r.t(y))

    def of_y(gradient: Tensor) -> Tensor:
        if y.strides == (1, y.shape[0]):
            return r.t(mm(r, r.t(gradient), x))
        return mm(r, r.t(x), gradient)

    def backward(gradient: Tensor) -> Both:
        made: Both = [None, None]
        for at in (1, 0) if right_first else (0, 1):
            made[at] = (of_x, of_y)[at](gradient) if wanted[at] else None
        return made

    return backward


def bmm(r: Recorder, x: Tensor, y: Tensor) -> Tensor:
    """x `[b, m, k]` times y `[b, k, n]`, one by one."""
    out = r.made("aten::bmm", (x, y), (x.shape[0], x.shape[1], y.shape[2]), x.dtype)

    def backward(gradient: Tensor) -> list[Tensor]:
        of_y = bmm(r, r.transpose(x, 1, 2), gradient)
        return [bmm(r, gradient, r.transpose(y, 1, 2)), of_y]

    return r.track("BmmBackward0", (x, y), out, backward)


MEAN = 1


def binary_cross_entropy(r: Recorder, x: Tensor, target: Tensor) -> Tensor:
    r.begin("aten::binary_cross_entropy", x, target, None, MEAN)
    average = r.made("aten::mean", (r.empty_like(x), None), (), x.dtype)
    out = r.tensor((), x.dtype)
    r.copy(out, average)
    r.end(out)

    def backward(gradient: Tensor) -> list[Tensor]:
        r.begin("aten::binary_cross_entropy_backward", gradient, x, target, None, MEAN)
        of_x = r.empty_like(x)
        r.leaf("aten::div_", (of_x, of_x.elements), of_x)
        r.end(of_x)
        return [of_x]

    return r.track("BinaryCrossEntropyBackward0", (x,), out, backward)


def binary_cross_entropy_with_logits(r: Recorder, x: Tensor, target: Tensor) -> Tensor:
    r.begin("aten::binary_cross_entropy_with_logits", x, target, None, None, MEAN)
    r.begin("aten::log_sigmoid", x)
    log = r.made("aten::log_sigmoid_forward", (x,), x.shape, x.dtype)
    r.end(log)
    each = r.empty_like(target)
    r.leaf("aten::fill_", (each, 1), each)
    r.leaf("aten::sub_", (each, target, 1), each)
    r.leaf("aten::mul_", (each, x), each)
    r.leaf("aten::sub_", (each, log, 1), each)
    out = r.made("aten::mean", (each, None), (), each.dtype)
    r.end(out)

    def backward(gradient: Tensor) -> list[Tensor]:
        of_x = r.made("aten::sigmoid", (x,), x.shape, x.dtype)
        r.leaf("aten::sub_", (of_x, target, 1), of_x)
        r.leaf("aten::mul_", (of_x, gradient), of_x)
        r.leaf("aten::div_", (of_x, of_x.elements), of_x)
        return [of_x]

    return r.track("BinaryCrossEntropyWithLogitsBackward0", (x,), out, backward)


def mse_loss(r: Recorder, x: Tensor, target: Tensor) -> Tensor:
    r.leaf("aten::broadcast_tensors", ((x, target),))
    out = r.made("aten::mse_loss", (x, target, MEAN), (), x.dtype)

    def backward(gradient: Tensor) -> list[Tensor]:
        r.begin("aten::mse_loss_backward", gradient, x, target, MEAN)
        of_x = r.zero(r.empty_like(x))
        r.end(of_x)
        return [of_x]

    return r.track("MseLossBackward0", (x,), out, backward)


LOSSES = {
    "bce": binary_cross_entropy,
    "bce_with_logits": binary_cross_entropy_with_logits,
    "mse": mse_loss,
}
"""By their name in a workload."""
