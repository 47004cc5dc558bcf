"""Attention, products, linear layers of one byte; recurrent layers as cuDNN runs them: a product
over all inputs, then step after step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from perfmodel.lowering.arguments import FP32, TF32, flag, matrix, tensor, tensors, told
from perfmodel.lowering.piece import LEAF, MissingArguments, Piece, rule
from perfmodel.ops.graph import Op
from perfmodel.ops.rows import FRAMEWORK, framework_code

FORWARD, BACKWARD = ("fwd", 0, 1), ("bwd", 1, 3)
"""Direction, where the query is (key and value follow), and launches: flash attention's backward
pass has the products of output and gradient, the gradients, a conversion."""
_CAUSAL_AT = {
    "aten::scaled_dot_product_attention": 5,
    "aten::_scaled_dot_product_flash_attention": 4,
    "aten::_scaled_dot_product_flash_attention_for_cpu": 4,
    "aten::_scaled_dot_product_efficient_attention": 6,
    "aten::_scaled_dot_product_cudnn_attention": 6,
    "aten::_cudnn_attention_forward": 10,
    "aten::_scaled_dot_product_fused_attention_overrideable": 5,
    "aten::_flash_attention_forward": 8,
    "aten::_efficient_attention_forward": 9,
}
"""Calls of attention, and where `is_causal` stands."""
SEQUENCE_FIRST = ("aten::_flash_attention_", "aten::_efficient_attention_")
"""Begins of ops over `batch x sequence x heads x dim`; others have heads before the sequence."""
_CALLS = [name for name in _CAUSAL_AT if not name.startswith(SEQUENCE_FIRST)]


@rule("_flash_attention_forward _efficient_attention_forward")
@rule("_flash_attention_backward _efficient_attention_backward _cudnn_attention_backward")
@rule(*_CALLS, *(f"{name}_backward" for name in _CALLS), scope=LEAF)
def attention(op: Op) -> Sequence[Piece]:
    """`(query, key, value, …)`, backward behind the gradient; a third dimension in place of four
    counts as one sequence."""
    direction, at, launches = BACKWARD if op.name.endswith("_backward") else FORWARD
    heads_first = not op.name.startswith(SEQUENCE_FIRST)
    if direction == "fwd":
        causal = bool(flag(op, _CAUSAL_AT[op.name]))
    else:
        causal = heads_first and any(item is True for item in op.inputs)
    given = tensor(op, at), tensor(op, at + 1)
    queries, keys = (t.shape if len(given[0].shape) != 3 else (1, *t.shape) for t in given)
    if len(queries) != 4 or len(keys) != 4:
        raise MissingArguments
    heads_at, sequence_at = (1, 2) if heads_first else (2, 1)
    dims = {
        "b": float(queries[0]),
        "s": float(queries[sequence_at]),
        "heads": float(queries[heads_at]),
        "head_dim": float(queries[3]),
        "kv_heads": float(keys[heads_at]),
        "s_kv": float(keys[sequence_at]),
        "causal": float(causal),
    }
    return (Piece("attention", dims, given[0].dtype, direction, launches=launches),)


_RAGGED = {(2, 3): "m", (3, 2): "n", (2, 2): "k"}
"""What groups share, by the dimensions of both operands: rows, columns, or what is summed over."""


@rule("_grouped_mm")
def grouped_product(op: Op) -> Sequence[Piece]:
    """`_grouped_mm(a, b, ends)`: a product per group, as if all were of one size."""
    left, right = tensor(op, 0).shape, tensor(op, 1).shape
    if (len(left), len(right)) not in {*_RAGGED, (3, 3)}:
        raise MissingArguments
    is_summed = len(left) == len(right) == 2
    groups = tensor(op, 2).elements if is_summed else max(left, right, key=len)[0]
    dims: dict[str, float] = {"b": groups, "m": left[-2], "n": right[-1], "k": left[-1]}
    if not all(dims.values()):
        return ()
    if (len(left), len(right)) in _RAGGED:
        dims[_RAGGED[len(left), len(right)]] /= groups
    return (Piece("bmm", dims, tensor(op, 0).dtype),)


_JAGGED = {"attention": "fwd", "attention_backward": "bwd"}


@rule(*_JAGGED, library="hstu::")
def jagged_attention(op: Op) -> Sequence[Piece]:
    """Over sequences of many lengths, whose sums are attributes."""
    direction = _JAGGED[op.name.removeprefix("hstu::")]
    dims = told(op, "jagged_attention")
    return (Piece("jagged_attention", dims, tensor(op, 0).dtype, direction),)


@rule("quantised::linear")
def quantised_linear(op: Op) -> Sequence[Piece]:
    """Rounding of the activations and the product, as the measurement table counts them: one row
    of the weight's dtype, of the attribute's `framework` if one is named."""
    values, weight = tensor(op, 0), tensor(op, 1)
    m, (n, k) = prod(values.shape[:-1]), matrix(weight)
    if not m * n * k:
        return ()
    dims = {"b": 1.0, "m": float(m), "n": float(n), "k": float(k), "bias": 1.0}
    if FRAMEWORK in op.attributes:
        dims[FRAMEWORK] = float(framework_code(op.attributes[FRAMEWORK]))
    return (Piece("linear", dims, weight.dtype, launches=2),)


_FACTS = ("steps", "batch", "inputs", "hidden", "gates", "layers", "directions")
"""Attributes of the op (`perfmodel.ops.read.recorder`), since its weights are one flat list."""
STEP_READS = 2.0
"""Per gate and hidden unit: its share of the inputs' product and of the states' product."""
MAX_UNITS = {"fwd": (384, 192), "bwd": (256, 128)}
"""Up to how many hidden units all steps are one kernel, of plain layers and of others; not of
packed sequences.

Source: aten/src/ATen/native/cudnn/RNN.cpp (`use_rnn_persist_small_h`), which asks for that.
"""
GRU_GATES = 3
"""Of LSTMs no profile shows how cuDNN sums the gradients of biases."""


@rule("_cudnn_rnn _cudnn_rnn_backward")
def recurrent(op: Op) -> Sequence[Piece]:
    """LSTM, GRU and plain layers; cuDNN multiplies in TF32, unless told otherwise.

    A product of all inputs of a layer, then one of the state and its gates for each step; steps of
    layers above one another do not overlap, as profiles of one H200 with cuDNN 9.19 show. Backward
    the same steps from last to first: the gradients of a step's gates, of them that of the state
    before; then of each layer those of its inputs, of its two weights and of its biases, of all
    steps at once.
    """
    if any(name not in op.attributes for name in _FACTS):
        raise MissingArguments
    steps, batch, inputs, hidden, gates, layers, directions = (
        int(op.attributes[name]) for name in _FACTS
    )
    if not min(steps, batch, inputs, hidden, gates, layers, directions):
        return ()
    has_biases, is_packed = (op.attributes.get(name, "1") != "0" for name in ("biases", "packed"))
    dtype = tensors(op, 1)[0].dtype  # of the first gradient that is told, backward
    usual, dtype = dtype if dtype != TF32 else FP32, TF32 if dtype == FP32 else dtype
    wide, rows, passes = gates * hidden, steps * batch, layers * directions
    read = [inputs] * directions + [hidden * directions] * (passes - directions)
    direction = "bwd" if op.name.endswith("_backward") else "fwd"
    persists = hidden <= MAX_UNITS[direction][gates > 1] and not is_packed
    chain = {"steps": steps, "batch": batch, "hidden": hidden, "gates": gates}
    one_kernel = Piece("persistent_rnn", {name: float(n) for name, n in chain.items()}, usual)

    def product(m: int, n: int, k: int, **of_step: float) -> Piece:
        dims = {"b": 1.0, "m": float(m), "n": float(n), "k": float(k)}
        return Piece("mm", dims | of_step, dtype)

    def pointwise(steps: int, reads: float, writes: float) -> Piece:
        dims = {"elements": float(steps * batch * wide), "reads": reads, "writes": writes}
        return Piece("elementwise", {**dims, "flop_per_element": 10.0}, usual)

    if direction == "fwd":
        of_inputs = [product(rows, wide, k) for k in read]
        if persists:
            return [*of_inputs, *[pointwise(steps, 1.0, 1.0), one_kernel] * passes]  # biases first
        step = [product(batch, wide, hidden, warm=1.0), pointwise(1, STEP_READS, 1.0 / gates)]
        return of_inputs + step * (steps * passes)
    step = [pointwise(1, STEP_READS, 1.0), product(batch, hidden, wide, warm=1.0)]
    found = [one_kernel] * passes if persists else step * (steps * passes)
    for k in read:
        found += [product(rows, k, wide), product(wide, k, rows), product(wide, hidden, rows)]
        if has_biases and gates == GRU_GATES:
            found.append(replace(one_kernel, op="rnn_bias_gradient"))
    return found


@rule("_cudnn_rnn _cudnn_rnn_backward", target="rocm")
def recurrent_on_rocm(op: Op) -> Sequence[Piece]:
    """The same without the kernels that are cuDNN's own."""
    return recurrent(replace(op, attributes={**op.attributes, "packed": "1", "biases": "0"}))
