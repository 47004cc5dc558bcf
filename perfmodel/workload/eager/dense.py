"""The dense part of a model: elementwise operators, matrix products and losses, with their
gradients; and the layers made of them: MLPs, the interaction of features, cross layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from perfmodel.errors import WorkloadError
from perfmodel.ops.graph import Tensor
from perfmodel.workload.eager.embedding_bag import index_pairs
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.model import Workload

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


QUANTISED, HALF = ("fp8", "int8"), ("fp16", "bf16")
"""Precisions of a layer whose operands are rounded to one byte, and those of what it then gives."""
COMPUTE = {"fp32": "fp32", "tf32": "fp32", "bf16": "bf16", "fp16": "fp16", "fp8": "bf16"}
"""Precision of a workload to the dtype that its activations have."""


@dataclass(frozen=True)
class Layer:
    """Weight `[out, in]` and bias `[out]`; `precision` where it is not that of the others."""

    weight: Tensor
    bias: Tensor
    precision: str = ""


def layers(
    r: Recorder, widths: Sequence[int], dtype: str = "fp32", precisions: Sequence[str] = ()
) -> tuple[Layer, ...]:
    """Parameters of an MLP whose widths, input first, are `widths`, stored as `dtype`.

    `precisions`: of each layer, where they differ; weights are stored so where they are not
    trained, which quantised ones cannot be.
    """
    made = []
    for number, (before, after) in enumerate(pairwise(widths)):
        own = precisions[number] if precisions else ""
        if own in QUANTISED and r.tape is not None:
            raise WorkloadError(f"layers of {own} can be evaluated, but not trained")
        half = own in HALF and r.tape is None
        stored = own if own in QUANTISED or half else dtype
        of_bias = own if half else "fp16" if own in QUANTISED else dtype
        weight, bias = r.tensor((after, before), stored), r.tensor((after,), of_bias)
        r.parameter(weight, bias)
        made.append(Layer(weight, bias, own))
    return tuple(made)


def parameters(*mlps: Sequence[Layer]) -> list[Tensor]:
    """Weights and biases, in the order of a module's `parameters()`."""
    return [tensor for mlp in mlps for layer in mlp for tensor in (layer.weight, layer.bias)]


def mlp(
    r: Recorder, x: Tensor, stack: Sequence[Layer], *, last: str = "relu", dtype: str = "fp32"
) -> Tensor:
    """`x` through the layers, ReLU between them and `last` (`relu sigmoid none`) at the end."""
    for number, layer in enumerate(stack, 1):
        x = _linear(r, x, layer, dtype)
        kind = last if number == len(stack) else "relu"
        if kind == "relu":
            x = relu(r, x)
        elif kind == "sigmoid":
            x = sigmoid(r, r.cast(x, "fp32"))
    return x


def _linear(r: Recorder, x: Tensor, layer: Layer, dtype: str) -> Tensor:
    if layer.precision in QUANTISED:
        # x rounded per row, its product with one-byte weights scaled back
        half = dtype if dtype in HALF else "fp16"
        given = r.cast(x, half), layer.weight, r.cast(layer.bias, half)
        return r.made("quantised::linear", given, (x.shape[0], layer.weight.shape[0]), half)
    dtype = COMPUTE.get(layer.precision, dtype)
    if dtype == "fp32":
        return linear(r, r.cast(x, dtype), layer.weight, layer.bias)
    return linear(r, r.cast(x, dtype), r.cast(layer.weight, dtype), r.cast(layer.bias, dtype))


@dataclass(frozen=True)
class Cross:
    """A cross layer of low rank: `down` `[rank, width]`, then `up` `[width, rank]` and its bias."""

    down: Tensor
    up: Layer


def cross(r: Recorder, x: Tensor, crosses: Sequence[Cross], dtype: str) -> Tensor:
    """Low-rank cross layers: x0 * (up (down x) + bias) + x.

    Source: DCN V2 (Wang et al. 2021), in the form that the MLPerf DLRM-DCNv2 reference has it.
    """
    first = x = r.cast(x, dtype)
    for layer in crosses:
        low = mm(r, x, r.t(r.cast(layer.down, dtype)))
        high = linear(r, low, r.cast(layer.up.weight, dtype), r.cast(layer.up.bias, dtype))
        x = add(r, mul(r, first, high), x)
    return x


def interact(
    r: Recorder,
    workload: Workload,
    features: Tensor,
    sparse: Tensor,
    crosses: Sequence[Cross],
    dtype: str,
    pairs: Tensor | None = None,
) -> Tensor:
    """The interaction of `workload`: what the top MLP gets, `[b, width]`.

    `features` are `[b, d]`, `sparse` `[b, t, d]`; `pairs` `[2, p]` are the places below the
    diagonal, on the device unless given.
    """
    if workload.interaction.kind == "dot":  # of all pairs, after the features
        joined = r.cat([r.unsqueeze(features, 1), sparse], 1)
        if dtype in HALF:
            joined = r.cast(joined, dtype)
        products = bmm(r, joined, r.transpose(joined, 1, 2))
        pairs = pairs or pair_indices(r, workload)
        flat = index_pairs(r, products, r.select(pairs, 0, 0), r.select(pairs, 0, 1))
        out = r.cat([features, flat], 1)
    else:
        joined = r.cat([features, r.reshape(sparse, (features.shape[0], -1))], 1)
        out = cross(r, joined, crosses, dtype)
    missing = workload.top_width - out.shape[1]
    return r.cat([out, r.tensor((out.shape[0], missing), out.dtype)], 1) if missing else out


def pair_indices(r: Recorder, workload: Workload, place: str = "") -> Tensor:
    vectors = len(workload.tables) + 1
    return r.tensor((2, vectors * (vectors - 1) // 2), "int64", place=place)


@dataclass(frozen=True)
class Dense:
    """Its layers, in the order in which they run."""

    bottom: tuple[Layer, ...]
    crosses: tuple[Cross, ...]
    top: tuple[Layer, ...]

    @property
    def modules(self) -> list[list[Tensor]]:
        crosses = [x for each in self.crosses for x in (each.down, *parameters((each.up,)))]
        return [parameters(self.bottom), crosses, parameters(self.top)]

    @property
    def parameters(self) -> list[Tensor]:
        return [tensor for module in self.modules for tensor in module]


def dense_layers(r: Recorder, workload: Workload, dtype: str = "fp32") -> Dense:
    bottom = len(workload.model.bottom_mlp)
    own, about = workload.implementation.layer_precisions, workload.interaction
    first = layers(r, workload.bottom_widths, dtype, own[:bottom])
    crosses = []
    for _ in range(about.layers if about.kind == "dcn_v2" else 0):
        down = r.tensor((about.rank, workload.joined_width), dtype)
        r.parameter(down)
        crosses.append(Cross(down, *layers(r, (about.rank, workload.joined_width), dtype)))
    last = layers(r, workload.top_widths, dtype, own[bottom:])
    return Dense(first, tuple(crosses), last)
