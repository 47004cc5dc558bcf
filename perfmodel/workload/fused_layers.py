"""Layers whose elementwise work is fused: in epilogues of matrix products, or in one kernel.

Source of what is one kernel: HugeCTR/src/layers of NVIDIA-Merlin/HugeCTR (fully connected layers
with bias and ReLU in epilogues, `multi_cross_layer.cu`, `interaction_layer.cu`).
"""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.ops.graph import Tensor
from perfmodel.workload.dense import Cross, Layer
from perfmodel.workload.eager.arithmetic import mm
from perfmodel.workload.eager.recorder import Gradients, Node, Recorder, rule, rule_of_one, track
from perfmodel.workload.eager.views import t


def streaming_kernel(r: Recorder, name: str, inputs: tuple[Tensor, ...], *outputs: Tensor) -> None:
    """One kernel of HugeCTR that moves its operands once."""
    r.leaf(f"hugectr::{name}", inputs, *outputs)


LAYER = "aten::_addmm_activation"
DOT = "hugectr::interaction"
JOIN = "hugectr::concat"
CROSS = "hugectr::multi_cross"
LOSS = "aten::binary_cross_entropy"


def fused_mlp(r: Recorder, x: Tensor, stack: Sequence[Layer], *, last: str) -> Tensor:
    """`x` through the layers: each one matrix product with bias and ReLU in its epilogue.

    `last` (`relu none`) is what ends the last layer.
    """
    for number, layer in enumerate(stack, 1):
        ending = last if number == len(stack) else "relu"
        out = _product(r, x, layer, f"bias_{ending}")
        track(r, LAYER, (x, layer.weight, layer.bias), out, x, layer.weight)
        x = out
    return x


@rule_of_one(LAYER, "fused_layer_backward")
def _layer_backward(r: Recorder, node: Node, gradient: Tensor) -> Gradients:
    """Two products: the bias the ReLU mask ride along."""
    x, weight = node.saved
    wants_x = node.wants[0]
    weight_gradient = mm(r, t(r, gradient), x)
    bias = r.tensor((weight.shape[0],), gradient.dtype)
    return [mm(r, gradient, weight) if wants_x else None, weight_gradient, bias]


def fused_dot(r: Recorder, features: Tensor, sparse: Tensor, width: int) -> Tensor:
    """The dot interaction `[batch, width]`: one kernel multiplies all pairs and keeps a half."""
    return _fused_interaction(r, DOT, features, sparse, width)


def fused_join(r: Recorder, features: Tensor, sparse: Tensor) -> Tensor:
    """Features `[b, d]` and sparse `[b, t, d]` in one row."""
    return _fused_interaction(
        r, JOIN, features, sparse, (sparse.elements + features.elements) // sparse.shape[0]
    )


def _fused_interaction(
    r: Recorder, name: str, features: Tensor, sparse: Tensor, width: int
) -> Tensor:
    out = r.tensor((sparse.shape[0], width), sparse.dtype)
    r.leaf(name, (features, sparse), out)
    track(r, name, (features, sparse), out)
    return out


@rule(DOT, "hugectr::interaction_backward")
def _dot_backward(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    """One kernel, from the gradient and both inputs to gradients in their places."""
    made = _like(r, node)
    r.leaf(f"{DOT}_backward", (gradients[0], *node.inputs), made)
    return made


@rule_of_one(JOIN, "hugectr::concat_backward")
def _join_backward(r: Recorder, node: Node, gradient: Tensor) -> Gradients:
    made = _like(r, node)
    r.leaf(f"{JOIN}_backward", (gradient,), made)
    return made


def _like(r: Recorder, node: Node) -> tuple[Tensor, ...]:
    return tuple(r.tensor(x.shape, x.dtype) for x in node.inputs)


def fused_cross(r: Recorder, x: Tensor, crosses: Sequence[Cross]) -> Tensor:
    """Low-rank cross layers: two products each, and one kernel for x0 * high + x."""
    first, kept = x, []
    for layer in crosses:
        low = r.tensor((x.shape[0], layer.down.shape[0]), x.dtype)
        r.leaf("aten::mm", (x, _transposed(r, layer.down)), low)
        high = _product(r, low, layer.up, "bias")
        out = r.tensor(x.shape, x.dtype)
        r.leaf("aten::addcmul", (x, first, high, 1), out)
        kept.append((layer, x, low, high))
        x = out
    weights = [part for each in crosses for part in (each.down, each.up.weight, each.up.bias)]
    track(r, CROSS, (first, *weights), x, kept)
    return x


@rule_of_one(CROSS, "hugectr::multi_cross_backward")
def _cross_backward(r: Recorder, node: Node, gradient: Tensor) -> Gradients:
    """Per layer one kernel for two products with what came, and four matrix products.

    What comes is added to the gradient of a layer's input in the epilogue of the last of them.
    """
    first, (kept,) = node.inputs[0], node.saved
    total = r.tensor(first.shape, first.dtype)
    r.leaf("hugectr::zero", (), total)
    made: list[Tensor] = []
    for layer, x, low, high in reversed(kept):
        of_high, summed = (r.tensor(first.shape, first.dtype) for _ in range(2))
        r.leaf(f"{CROSS}_products", (gradient, first, high, total), of_high, summed)
        total = summed
        bias = r.tensor(layer.up.bias.shape, first.dtype)
        of_up = mm(r, t(r, of_high), low)
        of_low = mm(r, of_high, layer.up.weight)
        of_down = mm(r, t(r, of_low), x)
        gradient = mm(r, of_low, layer.down)
        made = [of_down, of_up, bias, *made]
    out = r.tensor(first.shape, first.dtype)
    r.leaf("aten::add", (total, gradient, 1), out)
    return [out, *made]


def fused_loss(r: Recorder, logits: Tensor, labels: Tensor) -> Tensor:
    """Loss and its gradient at once."""
    out = r.tensor((), "fp32")
    r.leaf(LOSS, (logits, labels, None, 1), out)
    track(r, "fused_loss", (logits,), out)
    return out


@rule("fused_loss", "fused_loss_backward")
def _loss_backward(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    logits = node.inputs[0]
    return [r.tensor(logits.shape, logits.dtype)]


def _product(r: Recorder, x: Tensor, layer: Layer, epilogue: str) -> Tensor:
    out = r.tensor((x.shape[0], layer.weight.shape[0]), x.dtype)
    inputs = (layer.bias, x, _transposed(r, layer.weight), 1, 1, False)
    r.leaf(LAYER, inputs, out, about={"epilogue": epilogue})
    return out


def _transposed(r: Recorder, x: Tensor) -> Tensor:
    return r.view(x, x.shape[::-1], x.strides[::-1])
