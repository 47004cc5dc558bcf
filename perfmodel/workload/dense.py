"""The dense part of a model: MLPs, the interaction of features, cross layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from perfmodel.errors import WorkloadError
from perfmodel.ops.graph import Tensor
from perfmodel.workload.eager.arithmetic import (
    add,
    bmm,
    linear,
    mm,
    mul,
    quantised_linear,
    relu,
    sigmoid,
)
from perfmodel.workload.eager.embedding_bag import index_pairs
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.model import Workload

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
        half = dtype if dtype in HALF else "fp16"
        return quantised_linear(r, r.cast(x, half), layer.weight, r.cast(layer.bias, half))
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
