"""Layers as TensorFlow runs them with XLA Lite: matrix products, and what XLA leaves between them.

XLA Lite (`tf_xla_auto_jit=fusible`) compiles clusters of at least four elementwise ops, reductions
and ops that only move. Bias and ReLU of a hidden layer are two, so each stays a kernel of its own;
those of a stack's last layer lie in the cluster of what follows. ReLU's mask and the bias gradient
make a cluster with the cast and the loss scale of that gradient, where no all-reduce parts them.

Source: what TensorFlow 2.12 marks in a graph like the example's (`traces/tensorflow_cpu`); its
remapper, which makes `_FusedMatMul` on CPUs, and on GPUs only without XLA
(tensorflow/core/grappler/optimizers/remapper.cc).
"""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.graph.ops import Tensor
from perfmodel.workload.autograd.tape import Gradients, Node, rule, track
from perfmodel.workload.eager.products import linear, mm
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.eager.views import t
from perfmodel.workload.parts.embeddings import stream
from perfmodel.workload.parts.mlp import Layer
from perfmodel.workload.parts.one_thread import cluster_called

LAYER = "tensorflow::layer"


def tensorflow_mlp(
    r: Recorder, x: Tensor, stack: Sequence[Layer], *, scaled_in_cluster: bool
) -> Tensor:
    """`x` through the layers; `scaled_in_cluster` says whether gradients of hidden biases are cast
    to fp32 and scaled where they are made."""
    for number, layer in enumerate(stack, 1):
        is_last = number == len(stack)
        if r.is_cpu:
            x = _fused(r, x, layer)
            continue
        product = mm(r, x, t(r, layer.weight))
        out = r.tensor(product.shape, product.dtype)
        if is_last:
            stream(r, "bias_relu", (product, layer.bias), out)
        else:
            biased = r.tensor(product.shape, product.dtype)
            stream(r, "bias", (product, layer.bias), biased)
            stream(r, "relu", (biased,), out)
        saved = (x, layer.weight, out, is_last or scaled_in_cluster, scaled_in_cluster)
        track(r, LAYER, (x, layer.weight, layer.bias), out, *saved)
        x = out
    return x


def _fused(r: Recorder, x: Tensor, layer: Layer) -> Tensor:
    """On CPUs, and without XLA: bias and ReLU in the product's epilogue, their gradients apart."""
    tape, r.tape = r.tape, None
    out = linear(r, x, layer.weight, layer.bias)
    r.tape = tape
    track(r, LAYER, (x, layer.weight, layer.bias), out, x, layer.weight, out, False, False)
    return out


@rule(LAYER, "tensorflow::layer_backward")
def _layer_backward(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    """ReLU's mask and the bias gradient in one kernel or two, then two products."""
    (gradient,) = gradients
    assert gradient is not None
    x, weight, out, is_one_cluster, is_scaled = node.saved
    masked = r.tensor(out.shape, out.dtype)
    bias = r.tensor((weight.shape[0],), "fp32" if is_scaled else out.dtype)
    if is_scaled:
        cluster_called(r)
    if is_one_cluster:
        stream(r, "bias_relu_backward", (gradient, out), masked, bias)
    else:
        stream(r, "relu_backward", (gradient, out), masked)
        stream(r, "bias_backward", (masked,), bias)
    of_weight = mm(r, t(r, masked), x)
    return [mm(r, masked, weight) if node.wants[0] else None, of_weight, bias]
