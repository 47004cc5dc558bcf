"""Elementwise operators, reductions, matrix products, losses, and the optimizers' steps."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.ops.graph import Argument, Tensor
from perfmodel.workload.eager.recorder import Recorder, Shape
from perfmodel.workload.eager.tensors import (
    CONTIGUOUS,
    as_strided,
    copy,
    empty_like,
    expand,
    fill,
    resize,
    squeeze,
    t,
    to_dtype,
    transpose,
    view,
    zero,
)

Both = list[Tensor | None]
"""Gradients of two operands, None for one that needs none."""


def relu(r: Recorder, x: Tensor) -> Tensor:
    """max(x, 0)."""
    r.begin("aten::relu", x)
    out = r.made("aten::clamp_min", (x, 0), x.shape, x.dtype)
    r.end(out)

    def backward(gradient: Tensor) -> list[Tensor]:
        given = (gradient, r.view(out, out.shape, out.strides), 0)
        return [r.made("aten::threshold_backward", given, out.shape, out.dtype)]

    return r.track("ReluBackward0", (x,), out, backward)


def sigmoid(r: Recorder, x: Tensor) -> Tensor:
    """1 / (1 + exp(-x))."""
    out = r.made("aten::sigmoid", (x,), x.shape, x.dtype)

    def backward(gradient: Tensor) -> list[Tensor]:
        given = (gradient, r.view(out, out.shape, out.strides))
        return [r.made("aten::sigmoid_backward", given, out.shape, out.dtype)]

    return r.track("SigmoidBackward0", (x,), out, backward)


def add(r: Recorder, x: Tensor, y: Tensor) -> Tensor:
    """x + y."""
    out = r.made("aten::add", (x, y, 1), x.shape, x.dtype)
    return r.track("AddBackward0", (x, y), out, lambda g: [g, g])


def mul(r: Recorder, x: Tensor, y: Tensor) -> Tensor:
    """x * y, elementwise."""
    out = r.made("aten::mul", (x, y), x.shape, x.dtype)
    wanted = r.needs_gradient(x), r.needs_gradient(y)

    def backward(gradient: Tensor) -> Both:
        pairs = zip((y, x), wanted, strict=True)
        return [mul(r, gradient, other) if wants else None for other, wants in pairs]

    return r.track("MulBackward0", (x, y), out, backward)


def dropout(r: Recorder, x: Tensor) -> Tensor:
    """Some elements of x, scaled; which ones stays as a mask of bytes."""
    out, mask = r.like(x), r.tensor(x.shape, "bool")
    r.leaf("aten::native_dropout", (x,), out, mask)

    def backward(gradient: Tensor) -> list[Tensor]:
        given = (gradient, mask)
        return [r.made("aten::native_dropout_backward", given, gradient.shape, gradient.dtype)]

    return r.track("NativeDropoutBackward0", (x,), out, backward)


def scalar_in_place(r: Recorder, name: str, x: Tensor, value: int, *rest: int) -> None:
    """`name` in place with a number, which becomes a tensor of no dims; a CPU converts it."""
    r.begin(name, x, value, *rest)
    number = r.tensor((), "int64", place="cpu")
    r.begin(name, x, number, *rest)
    if r.is_cpu and x.dtype != number.dtype:
        to_dtype(r, number, x.dtype)
    r.end(x)
    r.end(x)


def mean(r: Recorder, x: Tensor) -> Tensor:
    """The mean of all elements."""
    r.begin("aten::mean", x, None)
    r.begin("aten::mean", x, (), False, None)
    out = r.tensor((), x.dtype)
    ones: Shape = (1,) * len(x.shape)
    if r.is_cpu:
        r.begin("aten::sum", x, (), False, 6, out)
        fill(r, as_strided(r, out, ones, (0,) * len(ones)), 0.0)
        r.end(out)
        scalar_in_place(r, "aten::div_", out, x.elements)
    else:
        as_strided(r, out, ones, (0,) * len(ones))
    r.end(out)
    r.end(out)
    return out


def sum_to(r: Recorder, x: Tensor, shape: Shape) -> Tensor:
    """Sum over the leading dims that `shape` lacks, as autograd does for what was broadcast."""
    extra = len(x.shape) - len(shape)
    r.begin("aten::sum", x, tuple(range(extra)), True, None)
    out = r.tensor((1,) * extra + x.shape[extra:], x.dtype)
    if r.is_cpu:
        fill(r, out, 0.0)
    r.end(out)
    return view(r, out, shape)


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
    r.begin("aten::addmm", bias, x, y, 1, 1)
    shape = (x.shape[0], y.shape[1])
    if r.is_cpu:
        spread = expand(r, bias, shape)
        out = r.tensor(shape, x.dtype)
        copy(r, out, spread)
        _resolve(r, out, x, y)
    else:
        out = r.tensor(shape, x.dtype)
    r.end(out)
    wants_x, wants_y = r.needs_gradient(x), r.needs_gradient(y)

    def backward(gradient: Tensor) -> Both:
        of_x = _of_left(r, gradient, x, y) if wants_x else None
        return [gradient, of_x, _of_right(r, gradient, x, y) if wants_y else None]

    return r.track("AddmmBackward0", (bias, x, y), out, backward)


def mm(r: Recorder, x: Tensor, y: Tensor) -> Tensor:
    """x `[m, k]` times y `[k, n]`."""
    r.begin("aten::mm", x, y)
    out = r.tensor((x.shape[0], y.shape[1]), x.dtype)
    if r.is_cpu:
        _resolve(r, out, x, y)
    r.end(out)
    wants_x, wants_y = r.needs_gradient(x), r.needs_gradient(y)

    def backward(gradient: Tensor) -> Both:
        of_y = _of_right(r, gradient, x, y) if wants_y else None
        return [_of_left(r, gradient, x, y) if wants_x else None, of_y]

    return r.track("MmBackward0", (x, y), out, backward)


def _of_left(r: Recorder, gradient: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The gradient of `x`, in the layout of `x`."""
    if x.strides == (1, x.shape[0]):
        return t(r, mm(r, y, t(r, gradient)))
    return mm(r, gradient, t(r, y))


def _of_right(r: Recorder, gradient: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The gradient of `y`, in the layout of `y`: of a transposed weight, transposed."""
    if y.strides == (1, y.shape[0]):
        return t(r, mm(r, t(r, gradient), x))
    return mm(r, t(r, x), gradient)


def bmm(r: Recorder, x: Tensor, y: Tensor) -> Tensor:
    """x `[b, m, k]` times y `[b, k, n]`, one by one."""
    r.begin("aten::bmm", x, y)
    out = r.tensor((x.shape[0], x.shape[1], y.shape[2]), x.dtype)
    if r.is_cpu:
        for operand in (y, x):
            r.leaf("aten::resolve_conj", (operand,), operand)
    r.end(out)

    def backward(gradient: Tensor) -> list[Tensor]:
        of_y = bmm(r, transpose(r, x, 1, 2), gradient)
        return [bmm(r, gradient, transpose(r, y, 1, 2)), of_y]

    return r.track("BmmBackward0", (x, y), out, backward)


def _resolve(r: Recorder, out: Tensor, x: Tensor, y: Tensor) -> None:
    """The operands that go to a column-major BLAS as they are; transposed ones are not asked.

    Source: the layouts that a column-major GEMM can take, and execution traces of PyTorch 2.13.
    """
    (m, n), k = out.shape, x.shape[1]
    resolved = [out]
    row, column = out.strides
    if row == 1 and (n == 1 or column >= max(1, m)):
        as_they_are = ((x, m), (y, k))
    else:
        as_they_are = ((_mirrored(y), n), (_mirrored(x), k))
    resolved += [
        tensor
        for tensor, leading in as_they_are
        if tensor.strides[0] == 1 and tensor.strides[1] >= max(1, leading)
    ]
    given = {x.tensor_id: x, y.tensor_id: y}
    for tensor in resolved:
        original = given.get(tensor.tensor_id, tensor)
        r.leaf("aten::resolve_conj", (original,), original)


def _mirrored(x: Tensor) -> Tensor:
    return Tensor(x.shape[::-1], x.dtype, x.tensor_id, x.storage_id, strides=x.strides[::-1])


MEAN = 1


def binary_cross_entropy(r: Recorder, x: Tensor, target: Tensor) -> Tensor:
    """Of probabilities `x`."""
    r.begin("aten::binary_cross_entropy", x, target, None, MEAN)
    each = empty_like(r, x, None)
    for operand in (each, x, target):
        squeeze(r, operand)
    average = mean(r, each)
    r.begin("aten::resize_as_", each, average, None)
    out = resize(r, each, ())
    r.end(out)
    copy(r, out, average)
    r.end(out)

    def backward(gradient: Tensor) -> list[Tensor]:
        r.begin("aten::binary_cross_entropy_backward", gradient, x, target, None, MEAN)
        of_x = empty_like(r, x, None)
        for operand in (of_x, gradient, x, target):
            squeeze(r, operand)
        scalar_in_place(r, "aten::div_", of_x, of_x.elements)
        r.end(of_x)
        return [of_x]

    return r.track("BinaryCrossEntropyBackward0", (x,), out, backward)


def binary_cross_entropy_with_logits(r: Recorder, x: Tensor, target: Tensor) -> Tensor:
    """Of logits `x`."""
    r.begin("aten::binary_cross_entropy_with_logits", x, target, None, None, MEAN)
    log = r.tensor(x.shape, x.dtype)
    r.begin("aten::log_sigmoid", x)
    r.begin("aten::log_sigmoid_forward", x)
    for _ in range(2):
        empty_like(r, x, CONTIGUOUS)
    r.end(log, log)
    r.end(log)
    each = empty_like(r, target)
    fill(r, each, 1)
    r.leaf("aten::sub_", (each, target, 1), each)
    r.leaf("aten::mul_", (each, x), each)
    r.leaf("aten::sub_", (each, log, 1), each)
    out = mean(r, each)
    r.end(out)

    def backward(gradient: Tensor) -> list[Tensor]:
        of_x = r.made("aten::sigmoid", (x,), x.shape, x.dtype)
        r.leaf("aten::sub_", (of_x, target, 1), of_x)
        r.leaf("aten::mul_", (of_x, gradient), of_x)
        scalar_in_place(r, "aten::div_", of_x, of_x.elements)
        return [of_x]

    return r.track("BinaryCrossEntropyWithLogitsBackward0", (x,), out, backward)


def mse_loss(r: Recorder, x: Tensor, target: Tensor) -> Tensor:
    """The mean of the squared differences."""
    r.leaf("aten::broadcast_tensors", ((x, target),), (x, target))
    r.begin("aten::mse_loss", x, target, MEAN)
    out = mean(r, empty_like(r, x, CONTIGUOUS))
    r.end(out)

    def backward(gradient: Tensor) -> list[Tensor]:
        r.begin("aten::mse_loss_backward", gradient, x, target, MEAN)
        of_x = zero(r, empty_like(r, x, CONTIGUOUS))
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


def optimizer_step(
    r: Recorder, optimizer: str, style: str, weights: Sequence[Tensor], gradients: Sequence[Tensor]
) -> None:
    """One step of `optimizer` (`sgd adagrad adam`) in `style` (`loop foreach fused`)."""
    if style != "loop":
        if weights:
            _over_lists(r, optimizer, style, tuple(weights), tuple(gradients))
        return
    for weight, gradient in zip(weights, gradients, strict=True):
        made = _STATES[optimizer] and f"{_STATES[optimizer]}r"
        held = {"p": weight, "g": gradient}
        held |= {name: r.tensor(weight.shape, weight.dtype) for name in made}
        for name, operands, numbers in _STEPS[optimizer]:
            rest = (*numbers, 1) if (name, operands) == ("add_", "r") else numbers
            written = held["r"] if name == "sqrt" else held[operands[0]]
            r.leaf(f"aten::{name}", (*(held[each] for each in operands), *rest), written)


def _over_lists(
    r: Recorder,
    optimizer: str,
    style: str,
    weights: tuple[Tensor, ...],
    gradients: tuple[Tensor, ...],
) -> None:
    """All parameters at once; a `foreach` call makes the roots, and divides by no correction."""

    def alike() -> tuple[Tensor, ...]:
        return tuple(r.tensor(x.shape, x.dtype) for x in weights)

    held: dict[str, tuple[Tensor, ...]] = {"p": weights, "g": gradients}
    held |= {name: alike() for name in _STATES[optimizer]}
    if style == "fused":
        r.leaf(f"aten::_fused_{optimizer}_", tuple(held.values()))
        return
    for name, operands, numbers in _STEPS[optimizer]:
        if name == "div_":
            continue
        if name == "sqrt":
            held["r"] = alike()
        made = (held["r"],) if name == "sqrt" else ()
        given: tuple[Argument, ...] = (*(held[each] for each in operands), *numbers)
        r.leaf(f"aten::_foreach_{name}", given, *made)
