"""Layers of a matrix product and one kernel for the rest: Apex's MLPs.

Source: csrc/mlp_cuda.cu of NVIDIA/apex (`mlp_fp`, whose epilogues do not take a ReLU; `mlp_bp`).
"""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.graph.ops import Tensor
from perfmodel.workload.autograd.tape import Gradients, Node, rule, track
from perfmodel.workload.eager.creation import fill
from perfmodel.workload.eager.products import mm
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.eager.views import t
from perfmodel.workload.parts.embeddings import stream
from perfmodel.workload.parts.mlp import Layer

LAYER = "apex::mlp_layer"
FEATURES_PER_BLOCK = 128


def apex_mlp(r: Recorder, x: Tensor, stack: Sequence[Layer]) -> Tensor:
    """`x` through the layers: each a matrix product, and a kernel for bias and ReLU."""
    for layer in stack:
        product = mm(r, x, t(r, layer.weight))
        out = r.tensor(product.shape, product.dtype)
        stream(r, "bias_relu", (product, layer.bias), out)
        track(r, LAYER, (x, layer.weight, layer.bias), out, x, layer.weight, out)
        x = out
    return x


@rule(LAYER, "apex::mlp_layer_backward")
def _layer_backward(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    """ReLU's mask and the bias gradient in one kernel, whose blocks take turns by counters that are
    set to 0 before; then two products."""
    (gradient,) = gradients
    assert gradient is not None
    x, weight, out = node.saved
    fill(r, r.tensor((-(-weight.shape[0] // FEATURES_PER_BLOCK),), "int32"), 0)
    masked, bias = r.tensor(out.shape, out.dtype), r.tensor((weight.shape[0],), out.dtype)
    stream(r, "bias_relu_backward", (gradient, out), masked, bias)
    of_input = mm(r, masked, weight) if node.wants[0] else None
    return [of_input, mm(r, t(r, masked), x), bias]
