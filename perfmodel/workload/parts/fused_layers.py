"""Layers whose bias, activation and gradients ride in the epilogues of the matrix products."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.graph.ops import Tensor
from perfmodel.workload.autograd.tape import Gradients, Node, rule, track
from perfmodel.workload.eager.joins import cat
from perfmodel.workload.eager.products import bmm, mm
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.eager.views import t, transpose, unsqueeze
from perfmodel.workload.parts.mlp import Layer

LAYER = "aten::_addmm_activation"
DOT = "fused_dot"


def fused_mlp(r: Recorder, x: Tensor, stack: Sequence[Layer], *, last: str) -> Tensor:
    """`x` through the layers: each one matrix product with bias and ReLU in its epilogue.

    `last` (`relu none`) is what ends the last layer.
    """
    for number, layer in enumerate(stack, 1):
        activation = last if number == len(stack) else "relu"
        weight = r.view(layer.weight, layer.weight.shape[::-1], (1, layer.weight.shape[1]))
        out = r.tensor((x.shape[0], layer.weight.shape[0]), x.dtype)
        r.leaf(
            LAYER,
            (layer.bias, x, weight, 1, 1, False),
            out,
            about={"epilogue": f"bias_{activation}"},
        )
        track(r, LAYER, (x, layer.weight, layer.bias), out, x, layer.weight)
        x = out
    return x


@rule(LAYER, "fused_layer_backward")
def _layer_backward(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    """Two products: the bias gradient and the ReLU mask ride along."""
    (gradient,) = gradients
    assert gradient is not None
    x, weight = node.saved
    wants_x = node.wants[0]
    weight_gradient = mm(r, t(r, gradient), x)
    bias_gradient = r.tensor((weight.shape[0],), gradient.dtype)
    return [mm(r, gradient, weight) if wants_x else None, weight_gradient, bias_gradient]


def fused_dot(r: Recorder, features: Tensor, sparse: Tensor, width: int) -> Tensor:
    """The dot interaction `[batch, width]`: concatenation, products and triangle in one kernel."""
    vectors = sparse.shape[1] + 1
    joined = cat(r, [unsqueeze(r, features, 1), sparse], 1)
    products = bmm(r, joined, transpose(r, joined, 1, 2))
    out = r.tensor((features.shape[0], width), features.dtype)
    pairs = r.tensor((vectors * (vectors - 1) // 2,), "int64")
    r.leaf("aten::index_select", (products, 1, pairs), out)
    track(r, DOT, (features, products), out)
    return out


@rule(DOT, "fused_dot_backward")
def _dot_backward(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    """The triangle of the gradient as a matrix, and the features' own part."""
    (gradient,) = gradients
    assert gradient is not None
    features, products = node.inputs
    own = r.view(gradient, features.shape, (gradient.shape[1], 1))
    spread = r.tensor(products.shape, gradient.dtype)
    r.leaf("aten::copy_", (spread, spread, False), spread)
    return [own, spread]
