"""Elementwise operators, reductions, matrix products, losses, and the optimizers' steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from perfmodel.ops.graph import Argument, Tensor
from perfmodel.workload.eager.recorder import Recorder, Shape
from perfmodel.workload.eager.tensors import copy, empty_like, t, transpose, view, zero

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


def sum_to(r: Recorder, x: Tensor, shape: Shape) -> Tensor:
    """Sum over the leading dims that `shape` lacks, as autograd does for what was broadcast."""
    extra = len(x.shape) - len(shape)
    given = (x, tuple(range(extra)), True)
    return view(r, r.made("aten::sum", given, (1,) * extra + x.shape[extra:], x.dtype), shape)


def linear(r: Recorder, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x `[m, k]` times weight `[n, k]` transposed, plus bias `[n]`."""
    r.begin("aten::linear", x, weight, bias)
    out = addmm(r, bias, x, t(r, weight))
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
            return t(r, mm(r, y, t(r, gradient)))
        return mm(r, gradient, t(r, y))

    def of_y(gradient: Tensor) -> Tensor:
        if y.strides == (1, y.shape[0]):
            return t(r, mm(r, t(r, gradient), x))
        return mm(r, t(r, x), gradient)

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
        of_y = bmm(r, transpose(r, x, 1, 2), gradient)
        return [bmm(r, gradient, transpose(r, y, 1, 2)), of_y]

    return r.track("BmmBackward0", (x, y), out, backward)


MEAN = 1


def binary_cross_entropy(r: Recorder, x: Tensor, target: Tensor) -> Tensor:
    r.begin("aten::binary_cross_entropy", x, target, None, MEAN)
    average = r.made("aten::mean", (empty_like(r, x), None), (), x.dtype)
    out = r.tensor((), x.dtype)
    copy(r, out, average)
    r.end(out)

    def backward(gradient: Tensor) -> list[Tensor]:
        r.begin("aten::binary_cross_entropy_backward", gradient, x, target, None, MEAN)
        of_x = empty_like(r, x)
        r.leaf("aten::div_", (of_x, of_x.elements), of_x)
        r.end(of_x)
        return [of_x]

    return r.track("BinaryCrossEntropyBackward0", (x,), out, backward)


def binary_cross_entropy_with_logits(r: Recorder, x: Tensor, target: Tensor) -> Tensor:
    r.begin("aten::binary_cross_entropy_with_logits", x, target, None, None, MEAN)
    r.begin("aten::log_sigmoid", x)
    log = r.made("aten::log_sigmoid_forward", (x,), x.shape, x.dtype)
    r.end(log)
    each = empty_like(r, target)
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
        of_x = zero(r, empty_like(r, x))
        r.end(of_x)
        return [of_x]

    return r.track("MseLossBackward0", (x,), out, backward)


LOSSES = {
    "bce": binary_cross_entropy,
    "bce_with_logits": binary_cross_entropy_with_logits,
    "mse": mse_loss,
}
"""By their name in a workload."""


LEARNING_RATE = 0.01
EPSILON = 1e-8
STATES = {"sgd": 0, "adagrad": 1, "adam": 2, "rowwise_adagrad": 0}
"""Tensors of a parameter's own shape that each optimizer keeps of it."""

_STEPS: dict[str, tuple[tuple[str, str, tuple[float, ...]], ...]] = {
    "sgd": (("add_", "pg", (-LEARNING_RATE,)),),
    "adagrad": (
        ("addcmul_", "sgg", (1,)),
        ("sqrt", "s", ()),
        ("add_", "r", (EPSILON,)),
        ("addcdiv_", "pgr", (-LEARNING_RATE,)),
    ),
    "adam": (
        ("lerp_", "mg", (0.1,)),
        ("mul_", "s", (0.999,)),
        ("addcmul_", "sgg", (0.001,)),
        ("sqrt", "s", ()),
        ("div_", "r", (1.0,)),
        ("add_", "r", (EPSILON,)),
        ("addcdiv_", "pmr", (-LEARNING_RATE,)),
    ),
}
"""What an update calls, of parameters, gradients, means, squares and roots, with which numbers."""
_STATES = {"sgd": "", "adagrad": "s", "adam": "ms"}


def optimizer_passes(optimizer: str) -> int:
    """How often a `foreach` step reads or writes a tensor as large as the parameters."""
    calls = [set(operands) for name, operands, _ in _STEPS[optimizer] if name != "div_"]
    return sum(len(each) + 1 for each in calls)


def optimizer_step(
    r: Recorder, optimizer: str, style: str, weights: Sequence[Tensor], gradients: Sequence[Tensor]
) -> None:
    """One step of `optimizer` (`sgd adagrad adam`) in `style`: a `loop` over parameters, or
    `foreach` or `fused` calls over all; of these one makes the roots and divides by no correction.
    """
    is_loop, states = style == "loop", _STATES[optimizer]
    pairs = list(zip(weights, gradients, strict=True))
    for group in [[pair] for pair in pairs] if is_loop else [pairs] * bool(pairs):
        held = {"p": tuple(weight for weight, _ in group), "g": tuple(each for _, each in group)}
        made = states + "r" if states and is_loop else states
        held |= {name: tuple(r.tensor(x.shape, x.dtype) for x in held["p"]) for name in made}
        if style == "fused":
            r.leaf(f"aten::_fused_{optimizer}_", tuple(held.values()))
            continue
        for name, operands, numbers in _STEPS[optimizer]:
            if is_loop:
                written = held["r" if name == "sqrt" else operands[0]][0]
                given: tuple[Argument, ...] = (*(held[each][0] for each in operands), *numbers)
                r.leaf(f"aten::{name}", given, written)
            elif name != "div_":
                if name == "sqrt":
                    held["r"] = tuple(r.tensor(x.shape, x.dtype) for x in held["p"])
                roots = (held["r"],) if name == "sqrt" else ()
                every: tuple[Argument, ...] = (*(held[each] for each in operands), *numbers)
                r.leaf(f"aten::_foreach_{name}", every, *roots)
