"""Matrix products, attention, and linear layers of one byte."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.lowering.arguments import flag, matrix, size, tensor
from perfmodel.lowering.piece import LEAF, LOWERINGS, MissingArguments, Piece, entries
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
