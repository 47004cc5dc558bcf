"""Attention, products, linear layers of one byte; recurrent layers as cuDNN runs them: a product
over all inputs, then step after step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from perfmodel.lowering.arguments import FP32, TF32, flag, matrix, size, tensor, tensors
from perfmodel.lowering.piece import LEAF, LOWERINGS, Lowering, MissingArguments, Piece, entries
from perfmodel.ops.graph import Op
from perfmodel.ops.rows import FRAMEWORK, TORCH, framework_code

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


@LOWERINGS.register(
    *entries("_flash_attention_forward _efficient_attention_forward"),
    *entries("_flash_attention_backward _efficient_attention_backward _cudnn_attention_backward"),
    *entries(*_CALLS, *(f"{name}_backward" for name in _CALLS), scope=LEAF),
)
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


_JAGGED = (
    *("tokens", "pairs", "heads", "head_dim", "value_dim"),
    *("cutlass", "bias_buckets", "sequences"),
)
_JAGGED_WAYS = {
    "any/hstu::attention": "fwd",
    "any/hstu::attention_backward": "bwd",
    "any/hstu::attention_bias_backward": "bwd_bias",
}


@LOWERINGS.register(*_JAGGED_WAYS)
def jagged_attention(op: Op) -> Sequence[Piece]:
    """Over sequences of many lengths, whose sums are attributes."""
    if any(name not in op.attributes for name in _JAGGED):
        raise MissingArguments
    dims = {name: float(op.attributes[name]) for name in _JAGGED}
    way = _JAGGED_WAYS[f"any/{op.name}"]
    return (Piece("jagged_attention", dims, tensor(op, 0).dtype, way),)


@LOWERINGS.register(*entries("matmul einsum_pair", scope=LEAF))
def matmul(op: Op) -> Sequence[Piece]:
    """`matmul(a, b)` with leading dimensions folded as PyTorch folds them."""
    left, right = tensor(op, 0).shape, tensor(op, 1).shape
    if len(left) < 2 or len(right) < 2:
        raise MissingArguments
    is_flat = len(right) == 2
    batch = 1 if is_flat else max(size(left[:-2]), size(right[:-2]))
    m = size(left[:-1]) if is_flat else left[-2]
    dims: dict[str, float] = {"b": batch, "m": m, "n": right[-1], "k": left[-1]}
    if not all(dims.values()):
        return ()
    dims[FRAMEWORK] = float(framework_code(TORCH))
    return (Piece("mm" if is_flat else "bmm", dims, tensor(op, 0).dtype),)


@LOWERINGS.register("any/quantised::linear")
def quantised_linear(op: Op) -> Sequence[Piece]:
    """Rounding of the activations and the product, as the measurement table counts them: one row
    of the weight's dtype, of the attribute's `framework` if one is named."""
    values, weight = tensor(op, 0), tensor(op, 1)
    m, (n, k) = size(values.shape[:-1]), matrix(weight)
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
FORWARD_UNITS, BACKWARD_UNITS = {1: 384}, {1: 256}
USUAL_FORWARD_UNITS, USUAL_BACKWARD_UNITS = 192, 128
"""Up to how many hidden units all steps are one kernel, by gates; not of packed sequences.

Source: aten/src/ATen/native/cudnn/RNN.cpp (`use_rnn_persist_small_h`), which asks for that.
"""
GRU_GATES = 3
"""Of LSTMs no profile shows how cuDNN sums the gradients of biases."""
Facts = dict[str, int]


@LOWERINGS.register(*entries("_cudnn_rnn"))
def recurrent(op: Op) -> Sequence[Piece]:
    """LSTM, GRU and plain layers; cuDNN multiplies in TF32, unless told otherwise."""
    return _pieces(op, _layers)


@LOWERINGS.register(*entries("_cudnn_rnn_backward"))
def recurrent_backward(op: Op) -> Sequence[Piece]:
    """Their gradients."""
    return _pieces(op, _gradients)


def _step_by_step(rule: Lowering, op: Op) -> Sequence[Piece]:
    """The rule without the kernels that are cuDNN's own."""
    return rule(replace(op, attributes={**op.attributes, "packed": "1", "biases": "0"}))


LOWERINGS.register("rocm/aten::_cudnn_rnn")(partial(_step_by_step, recurrent))
LOWERINGS.register("rocm/aten::_cudnn_rnn_backward")(partial(_step_by_step, recurrent_backward))


def _pieces(op: Op, of: Callable[[Facts, str], Iterator[Piece]]) -> Sequence[Piece]:
    if any(name not in op.attributes for name in _FACTS):
        raise MissingArguments
    facts = {name: int(op.attributes[name]) for name in _FACTS}
    if not min(facts.values()):
        return ()
    facts |= {name: int(op.attributes.get(name, "1")) for name in ("biases", "packed")}
    dtype = tensors(op, 1)[0].dtype  # of the first gradient that is told, backward
    return tuple(of(facts, TF32 if dtype == FP32 else dtype))


def _layers(facts: Facts, dtype: str) -> Iterator[Piece]:
    """A product of all inputs of a layer, then one of the state and its gates for each step; steps
    of layers above one another do not overlap, as profiles of one H200 with cuDNN 9.19 show."""
    batch, hidden = facts["batch"], facts["hidden"]
    wide, rows = facts["gates"] * hidden, facts["steps"] * batch
    yield from (_product(rows, wide, k, dtype) for k in _inputs(facts))
    if _persists(facts, FORWARD_UNITS.get(facts["gates"], USUAL_FORWARD_UNITS)):
        for _ in range(facts["layers"] * facts["directions"]):
            yield _gates(facts, facts["steps"], 1.0, 1.0, dtype)  # biases
            yield _chain("persistent_rnn", facts, dtype)
        return
    for _ in range(facts["steps"] * facts["layers"] * facts["directions"]):
        yield _product(batch, wide, hidden, dtype)
        yield _gates(facts, 1, STEP_READS, 1.0 / facts["gates"], dtype)


def _gradients(facts: Facts, dtype: str) -> Iterator[Piece]:
    """The same steps from last to first: the gradients of a step's gates, of them that of the state
    before; then of each layer those of its inputs, of its two weights and of its biases, of all
    steps at once."""
    batch, hidden = facts["batch"], facts["hidden"]
    wide, rows = facts["gates"] * hidden, facts["steps"] * batch
    if _persists(facts, BACKWARD_UNITS.get(facts["gates"], USUAL_BACKWARD_UNITS)):
        for _ in range(facts["layers"] * facts["directions"]):
            yield _chain("persistent_rnn", facts, dtype)
    else:
        for _ in range(facts["steps"] * facts["layers"] * facts["directions"]):
            yield _gates(facts, 1, STEP_READS, 1.0, dtype)
            yield _product(batch, hidden, wide, dtype)
    for k in _inputs(facts):
        yield _product(rows, k, wide, dtype)
        yield _product(wide, k, rows, dtype)
        yield _product(wide, hidden, rows, dtype)
        if facts["biases"] and facts["gates"] == GRU_GATES:
            yield _chain("rnn_bias_gradient", facts, dtype)


def _persists(facts: Facts, units: int) -> bool:
    return facts["hidden"] <= units and not facts["packed"]


def _inputs(facts: Facts) -> Iterator[int]:
    """Features that each layer reads, in each direction."""
    for layer in range(facts["layers"]):
        read = facts["hidden"] * facts["directions"] if layer else facts["inputs"]
        yield from [read] * facts["directions"]


def _product(m: int, n: int, k: int, dtype: str) -> Piece:
    return Piece("mm", {"b": 1.0, "m": float(m), "n": float(n), "k": float(k)}, dtype)


def _chain(op: str, facts: Facts, dtype: str) -> Piece:
    dims = {name: float(facts[name]) for name in ("steps", "batch", "hidden", "gates")}
    return Piece(op, dims, FP32 if dtype == TF32 else dtype)


def _gates(facts: Facts, steps: int, reads: float, writes: float, dtype: str) -> Piece:
    elements = float(steps * facts["batch"] * facts["gates"] * facts["hidden"])
    dims = {"elements": elements, "reads": reads, "writes": writes, "flop_per_element": 10.0}
    return Piece("elementwise", dims, FP32 if dtype == TF32 else dtype)
