"""Fully connected layers, in full precision or under autocast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from perfmodel.graph.ops import Tensor
from perfmodel.workload.eager.creation import to_dtype
from perfmodel.workload.eager.pointwise import relu, sigmoid
from perfmodel.workload.eager.products import linear
from perfmodel.workload.eager.recorder import Recorder

COMPUTE = {"fp32": "fp32", "tf32": "fp32", "bf16": "bf16", "fp16": "fp16"}
"""Precision of a workload to the dtype that its activations have."""


@dataclass(frozen=True)
class Layer:
    """Weight `[out, in]` and bias `[out]`."""

    weight: Tensor
    bias: Tensor


def layers(r: Recorder, widths: Sequence[int], dtype: str = "fp32") -> tuple[Layer, ...]:
    """Parameters of an MLP whose widths, input first, are `widths`, stored as `dtype`."""
    made = []
    for before, after in pairwise(widths):
        weight, bias = r.tensor((after, before), dtype), r.tensor((after,), dtype)
        if r.tape is not None:
            r.tape.parameter(weight)
            r.tape.parameter(bias)
        made.append(Layer(weight, bias))
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
            x = sigmoid(r, to_dtype(r, x, "fp32") if x.dtype != "fp32" else x)
    return x


def cast(r: Recorder, x: Tensor, dtype: str) -> Tensor:
    """`x` as autocast gives it to a matrix product."""
    return x if x.dtype == dtype else to_dtype(r, x, dtype)


def _linear(r: Recorder, x: Tensor, layer: Layer, dtype: str) -> Tensor:
    if dtype == "fp32":
        return linear(r, x, layer.weight, layer.bias)
    return linear(r, cast(r, x, dtype), cast(r, layer.weight, dtype), cast(r, layer.bias, dtype))
