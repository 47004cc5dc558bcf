"""Attention that runs in kernels of its own."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.graph.ops import Op, Tensor
from perfmodel.lowering.arguments import flag, tensor
from perfmodel.lowering.names import entries
from perfmodel.lowering.piece import LEAF, LOWERINGS, Piece, Untold

HEADS_FIRST = {
    "aten::scaled_dot_product_attention": 5,
    "aten::_scaled_dot_product_flash_attention": 4,
    "aten::_scaled_dot_product_flash_attention_for_cpu": 4,
    "aten::_scaled_dot_product_efficient_attention": 6,
    "aten::_scaled_dot_product_cudnn_attention": 6,
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
        raise Untold
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


@LOWERINGS.register(
    *entries("_flash_attention_backward", "_efficient_attention_backward"),
)
def backward(op: Op) -> Sequence[Piece]:
    """`(gradient, query, key, value, …)`."""
    return attention_of(
        tensor(op, 1), tensor(op, 2), heads_first=False, causal=False, direction="bwd"
    )


@LOWERINGS.register(*(f"any/{LEAF}{name}_backward" for name in HEADS_FIRST))
def backward_heads_first(op: Op) -> Sequence[Piece]:
    """`(gradient, query, key, value, …)`."""
    causal = any(item is True for item in op.inputs)
    return attention_of(
        tensor(op, 1), tensor(op, 2), heads_first=True, causal=causal, direction="bwd"
    )
