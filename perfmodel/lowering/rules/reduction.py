"""Sums, means, extrema and norms of vectors."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.graph.ops import Op, Tensor
from perfmodel.lowering.arguments import integers, length, output, size, tensor
from perfmodel.lowering.names import entries
from perfmodel.lowering.piece import LOWERINGS, Piece

OPS = {
    "sum": "sum",
    "nansum": "sum",
    "mean": "mean",
    "prod": "sum",
    "amax": "amax",
    "amin": "amax",
    "max": "amax",
    "min": "amax",
    "aminmax": "amax",
    "argmax": "amax",
    "argmin": "amax",
    "all": "amax",
    "any": "amax",
    "norm": "vector_norm",
    "linalg_vector_norm": "vector_norm",
    "logsumexp": "sum",
    "std": "sum",
    "var": "sum",
    "var_mean": "sum",
    "std_mean": "sum",
    "count_nonzero": "sum",
    "median": "amax",
}
DIMENSIONS = {"norm": 2, "linalg_vector_norm": 2}
"""Position of the dimensions among the arguments, where it is not the second."""
FIRST = "sum_rows"
USUALLY_WHOLE = ("aten::norm", "aten::linalg_vector_norm", "aten::count_nonzero")
USUALLY_ROWS = ("aten::sum",)
"""Along which dimensions an op reduces where nothing tells: all, all but the last (the gradient of
a bias), else the last alone."""


def reduced(op: str, values: Tensor, kept: tuple[int, ...]) -> Sequence[Piece]:
    """One kernel over `values`; `kept` are the dimensions that remain."""
    total = size(values.shape)
    if not total:
        return ()
    remaining = size(tuple(length(values, d) for d in kept))
    gone = total / remaining
    if op == "sum" and remaining > 1 and len(values.shape) - 1 in kept:
        return (Piece(FIRST, {"rows": gone, "cols": float(remaining)}, values.dtype),)
    return (Piece(op, {"rows": float(remaining), "cols": gone}, values.dtype),)


def _kept(op: Op, values: Tensor, position: int) -> tuple[int, ...]:
    """Dimensions that remain: from the arguments, the output, else what is usual for the op."""
    rank = len(values.shape)
    if len(op.inputs) <= position + (position == 1):
        return ()
    dims = integers(op, position)
    if dims is not None:
        gone = {d % rank for d in dims} if dims and rank else set(range(rank))
        return tuple(d for d in range(rank) if d not in gone)
    found = output(op)
    if found is not None:
        return _matching(values.shape, found.shape)
    if op.name in USUALLY_WHOLE or not rank:
        return ()
    return (rank - 1,) if op.name in USUALLY_ROWS else tuple(range(rank - 1))


def _matching(whole: tuple[int, ...], left: tuple[int, ...]) -> tuple[int, ...]:
    """Dimensions of `whole` that are those of `left`, in order."""
    if len(whole) == len(left):
        return tuple(d for d, (a, b) in enumerate(zip(whole, left, strict=True)) if a == b)
    kept, at = [], 0
    for d, side in enumerate(whole):
        if at < len(left) and left[at] == side:
            kept.append(d)
            at += 1
    return tuple(kept)


@LOWERINGS.register(*entries(*OPS))
def reduction(op: Op) -> Sequence[Piece]:
    """One kernel; two operands (`max` of two tensors) are elementwise."""
    name = op.name.removeprefix("aten::")
    values = tensor(op, 0)
    if len(op.tensors) > 1:
        from perfmodel.lowering.rules.elementwise import general

        return general(op)
    return reduced(OPS[name], values, _kept(op, values, DIMENSIONS.get(name, 1)))
