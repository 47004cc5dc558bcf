"""Matrix products, attention, and linear layers of one byte."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.lowering.arguments import flag, matrix, size, tensor
from perfmodel.lowering.piece import LEAF, LOWERINGS, MissingArguments, Piece, entries
from perfmodel.ops.graph import Op, Tensor
from perfmodel.ops.rows import FRAMEWORK, TORCH, framework_code

HEADS_FIRST = {
    "aten::scaled_dot_product_attention": 5,
    "aten::_scaled_dot_product_flash_attention": 4,
    "aten::_scaled_dot_product_flash_attention_for_cpu": 4,
    "aten::_scaled_dot_product_efficient_attention": 6,
    "aten::_scaled_dot_product_cudnn_attention": 6,
    "aten::_cudnn_attention_forward": 10,
    "aten::_scaled_dot_product_fused_attention_overrideable": 5,
}
"""Ops over `batch x heads x sequence x dim`, and where `is_causal` stands."""
SEQUENCE_FIRST = {
    "aten::_flash_attention_forward": 8,
    "aten::_efficient_attention_forward": 9,
}
"""Ops over `batch x sequence x heads x dim`."""
BACKWARD_LAUNCHES = 3
"""Flash attention: the products of output and gradient, the gradients, a conversion."""


def attention_of(
    queries: Tensor, keys: Tensor, *, heads_first: bool, causal: bool, direction: str = "fwd"
) -> Sequence[Piece]:
    """One call; a third dimension in place of four counts as one sequence."""
    if len(queries.shape) == 3:
        queries = Tensor((1, *queries.shape), queries.dtype)
        keys = Tensor((1, *keys.shape), keys.dtype)
    if len(queries.shape) != 4 or len(keys.shape) != 4:
        raise MissingArguments
    heads_at, sequence_at = (1, 2) if heads_first else (2, 1)
    dims = {
        "b": float(queries.shape[0]),
        "s": float(queries.shape[sequence_at]),
        "heads": float(queries.shape[heads_at]),
        "head_dim": float(queries.shape[3]),
        "kv_heads": float(keys.shape[heads_at]),
        "s_kv": float(keys.shape[sequence_at]),
        "causal": float(causal),
    }
    launches = 1 if direction == "fwd" else BACKWARD_LAUNCHES
    return (Piece("attention", dims, queries.dtype, direction, launches=launches),)


@LOWERINGS.register(*(f"any/{name}" for name in SEQUENCE_FIRST))
def sequence_first(op: Op) -> Sequence[Piece]:
    """`(query, key, value, …)`."""
    causal = bool(flag(op, SEQUENCE_FIRST[op.name]))
    return attention_of(tensor(op, 0), tensor(op, 1), heads_first=False, causal=causal)


@LOWERINGS.register(*(f"any/{LEAF}{name}" for name in HEADS_FIRST))
def heads_first(op: Op) -> Sequence[Piece]:
    """`(query, key, value, …)`."""
    causal = bool(flag(op, HEADS_FIRST[op.name]))
    return attention_of(tensor(op, 0), tensor(op, 1), heads_first=True, causal=causal)


@LOWERINGS.register(*entries("_flash_attention_backward _efficient_attention_backward"))
def backward(op: Op) -> Sequence[Piece]:
    """`(gradient, query, key, value, …)`."""
    return attention_of(
        tensor(op, 1), tensor(op, 2), heads_first=False, causal=False, direction="bwd"
    )


@LOWERINGS.register(
    *(f"any/{LEAF}{name}_backward" for name in HEADS_FIRST), *entries("_cudnn_attention_backward")
)
def backward_heads_first(op: Op) -> Sequence[Piece]:
    """`(gradient, query, key, value, …)`."""
    causal = any(item is True for item in op.inputs)
    return attention_of(
        tensor(op, 1), tensor(op, 2), heads_first=True, causal=causal, direction="bwd"
    )


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


def product(
    op: str, left: Tensor, right: Tensor, *, batch: int = 1, bias: bool = False
) -> Sequence[Piece]:
    """`left` (m x k) times `right` (k x n), last two dimensions; nothing where one is empty."""
    if len(left.shape) < 2 or len(right.shape) < 2:
        raise MissingArguments
    m, k = left.shape[-2:]
    n = right.shape[-1]
    return _piece(op, left.dtype, batch, m, n, k, bias)


def _piece(
    op: str, dtype: str, batch: int, m: int, n: int, k: int, bias: bool = False
) -> Sequence[Piece]:
    """A product by PyTorch's own call, whose kernels serving libraries' do not tell of."""
    if not batch * m * n * k:
        return ()
    dims: dict[str, float] = {"b": batch, "m": m, "n": n, "k": k}
    dims[FRAMEWORK] = float(framework_code(TORCH))
    if op == "linear":
        dims["bias"] = float(bias)
    return (Piece(op, dims, dtype),)


@LOWERINGS.register(*entries("matmul", "einsum_pair", scope=LEAF))
def matmul(op: Op) -> Sequence[Piece]:
    """`matmul(a, b)` with leading dimensions folded as PyTorch folds them."""
    left, right = tensor(op, 0), tensor(op, 1)
    if len(left.shape) < 2 or len(right.shape) < 2:
        raise MissingArguments
    if len(right.shape) == 2:
        m, k = size(left.shape[:-1]), left.shape[-1]
        return _piece("mm", left.dtype, 1, m, right.shape[-1], k)
    batch = max(size(left.shape[:-2]), size(right.shape[:-2]))
    return product("bmm", left, right, batch=batch)


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
