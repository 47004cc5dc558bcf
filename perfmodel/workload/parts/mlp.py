"""Fully connected layers, in full precision or under autocast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from perfmodel.errors import WorkloadError
from perfmodel.graph.ops import Tensor
from perfmodel.workload.eager.creation import to_dtype
from perfmodel.workload.eager.pointwise import relu, sigmoid
from perfmodel.workload.eager.products import linear, quantised_linear
from perfmodel.workload.eager.recorder import Recorder

QUANTISED, HALF = ("fp8", "int8"), ("fp16", "bf16")
"""Precisions of a layer whose operands are rounded to one byte, and those of what it then gives."""
COMPUTE = {"fp32": "fp32", "tf32": "fp32", "bf16": "bf16", "fp16": "fp16"}
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
        if r.tape is not None:
            r.tape.parameter(weight)
            r.tape.parameter(bias)
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
            x = sigmoid(r, to_dtype(r, x, "fp32") if x.dtype != "fp32" else x)
    return x


def cast(r: Recorder, x: Tensor, dtype: str) -> Tensor:
    """`x` as autocast gives it to a matrix product."""
    return x if x.dtype == dtype else to_dtype(r, x, dtype)


def _linear(r: Recorder, x: Tensor, layer: Layer, dtype: str) -> Tensor:
    if layer.precision in QUANTISED:
        half = dtype if dtype in HALF else "fp16"
        return quantised_linear(r, cast(r, x, half), layer.weight, cast(r, layer.bias, half))
    dtype = COMPUTE.get(layer.precision, dtype)
    if dtype == "fp32" and x.dtype != dtype:
        x = to_dtype(r, x, dtype)
    if dtype == "fp32":
        return linear(r, x, layer.weight, layer.bias)
    return linear(r, cast(r, x, dtype), cast(r, layer.weight, dtype), cast(r, layer.bias, dtype))
