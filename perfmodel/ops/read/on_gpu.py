"""What a GPU runs for operators that were traced without one, and what shapes do not tell of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import log, prod
from typing import Any

from perfmodel.ops.graph import Argument, Tensor, tensors_in

AS_ONE = {
    "scaled_dot_product_attention": "aten::scaled_dot_product_attention",
    "dropout": "aten::native_dropout",
}
FUSED = {"rms_norm": "aten::_fused_rms_norm"}
"""Functions that are one operator on a GPU, whatever they become on the tracing machine; `FUSED`
have one of their own for the backward pass as well (since PyTorch 2.8)."""
IN_FP32 = frozenset(
    (
        *("layer_norm", "group_norm", "softmax", "log_softmax", "norm", "exp", "log", "pow"),
        *("prod", "cumsum", "cumprod", "sum", "mse_loss", "l1_loss", "smooth_l1_loss"),
        *("cross_entropy", "nll_loss", "kl_div", "softplus", "rsqrt", "reciprocal"),
    )
)
"""What `torch.autocast` runs in fp32 on a GPU, and not on a CPU, where modules are traced."""
RECURRENT = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
"""Functions of recurrent layers, and how many gates each has."""
RECURRENT_OP = "aten::_cudnn_rnn"
_MIN_CUDNN_NORM_DIMS = 3
"""PyTorch gives batch normalisation of `batch x channels` alone to its own kernel."""
_SUM = "aten::sum"
"""Sums of integers are of 64 bits, and its kernel reads such."""
_SIDE_BY_SIDE = frozenset(
    f"aten::{name}"
    for name in ("native_layer_norm", "native_group_norm", "_softmax", "_log_softmax")
)
"""What has its input copied where it lies otherwise."""
EVEN, OFFSETS = "aten::arange", 2
BAGS = ("aten::_embedding_bag", "aten::_embedding_bag_forward_only")
"""What makes offsets of bags of one length, what reads them, and where among its inputs."""
ROWS_OF_BAGS, INDICES = "aten::_embedding_bag_backward", 1
"""Its gradient has a row for each index if it is sparse, which fake tensors do not tell."""
LOOKUPS, LONGEST_BAG = "lookups", "longest_bag"
_EULER_GAMMA = 0.5772156649
OPERATORS = {"__matmul__": "matmul", "__rmatmul__": "matmul", "__pow__": "pow"}
"""Methods that are operators of another name. Not indexing: it is views, or an operator below."""


def longest(lookups: int, bags: int) -> float:
    """Expected length of the longest of bags of which only the mean is known: of lengths that are
    distributed exponentially, which of all distributions of one mean assumes least.

    Source: the mean of the largest of n such is that of one times the n-th harmonic number.
    """
    mean = lookups / max(bags, 1)
    return min(mean * (log(bags) + _EULER_GAMMA), float(lookups)) if bags > 1 else float(lookups)


def copied_first(
    name: str, inputs: tuple[Argument, ...], outputs: tuple[Argument, ...]
) -> Tensor | None:
    """What the first of `inputs` is copied to before a GPU's kernel reads it: one that lies
    otherwise side by side, integers to be summed as 64 bits; None where it is read as it is."""
    values, made = (next(tensors_in(each), None) for each in (inputs, outputs))
    if values is None or made is None:
        return None
    if name == _SUM and made.dtype == "int64" != values.dtype:
        return replace(values, dtype=made.dtype)
    usual = tuple(prod(values.shape[at + 1 :]) for at in range(len(values.shape)))
    pairs = zip(values.shape, values.strides, usual, strict=False)
    if name in _SIDE_BY_SIDE and any(n > 1 and a != b for n, a, b in pairs):
        return replace(values, strides=usual)
    return None


def on_gpu(name: str, inputs: tuple[Argument, ...]) -> tuple[str, tuple[Argument, ...]]:
    """The operator that a GPU runs for one that was traced without: cuDNN normalises batches in
    training that have more than their channels, and a sparse gradient is kept, not copied."""
    is_norm = name in ("aten::native_batch_norm", "aten::_native_batch_norm_legit")
    if is_norm and _by_cudnn(inputs[0], inputs[5]):
        return "aten::cudnn_batch_norm", inputs
    if name == "aten::native_batch_norm_backward" and _by_cudnn(inputs[1], inputs[7]):
        return "aten::cudnn_batch_norm_backward", (inputs[1], inputs[0], *inputs[2:7], inputs[8])
    if name == "aten::clone" and isinstance(inputs[0], Tensor) and inputs[0].layout:
        return "aten::detach", inputs
    return name, inputs


def _by_cudnn(values: Argument, training: Argument) -> bool:
    """Whether batches of such `values` are normalised by the library."""
    has_pixels = isinstance(values, Tensor) and len(values.shape) >= _MIN_CUDNN_NORM_DIMS
    return training is True and has_pixels and values.dtype != "bf16"  # type: ignore[union-attr]


def recurrent_facts(name: str, args: Sequence[Any]) -> dict[str, str]:
    """`torch.lstm(x, states, weights, bias, layers, dropout, train, bidirectional, batch_first)`,
    or of packed sequences."""
    values, states, weights = args[0], args[1], args[2]
    packed = not isinstance(weights, (list, tuple))
    weights = args[3] if packed else weights
    layers, directions = (args[5], args[8]) if packed else (args[4], args[7])
    batch_first = False if packed else args[8]
    first = states[0] if isinstance(states, (list, tuple)) else states
    return {
        "gates": str(RECURRENT[name]),
        "layers": str(int(layers)),
        "directions": str(1 + bool(directions)),
        "hidden": str(int(first.shape[-1])),
        "steps": str(int(values.shape[1 if batch_first else 0])),
        "batch": str(int(values.shape[0 if batch_first else 1]) if values.dim() > 2 else 1),
        "inputs": str(int(values.shape[-1])),
        "biases": str(int(args[4] if packed else args[3])),
        "packed": str(int(packed)),
    }
