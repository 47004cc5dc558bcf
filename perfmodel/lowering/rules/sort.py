"""Orders and prefix sums."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.graph.ops import Op, Tensor
from perfmodel.lowering.arguments import bytes_of, integer, integers, length, size, tensor, tensors
from perfmodel.lowering.names import entries
from perfmodel.lowering.piece import LOWERINGS, Piece, Untold

SET_UP = Piece("fill", {"rows": 1.0, "cols": 1.0}, "int32")
"""A kernel that does next to nothing before another."""
SINGLE_TILE = 4096
"""Keys that one thread block sorts at once."""
RADIX_BITS = 8
ONESWEEP_FIXED = 2
"""Launches of a radix sort that do not depend on the key: histogram, sums of it."""


def sort_launches(cols: float, key_bits: float) -> int:
    """Kernels of one radix sort."""
    if cols <= SINGLE_TILE:
        return 1
    return ONESWEEP_FIXED + -int(-key_bits // RADIX_BITS)


def sorted_rows(
    rows: int, cols: int, dtype: str, *, key_bits: float = 0.0, pairs: bool = True
) -> Sequence[Piece]:
    """One sort along `cols`."""
    if not rows * cols:
        return ()
    launches = sort_launches(cols, key_bits or 8 * bytes_of(dtype))
    dims = {"rows": float(rows), "cols": float(cols), "key_bits": float(key_bits)}
    return (Piece("sort_pairs" if pairs else "sort", dims, dtype, launches=launches),)


def first(op: Op) -> Tensor:
    """The first tensor among the arguments; variants with an output given record it oddly."""
    found = next(iter(op.tensors), None)
    if found is None:
        raise Untold
    return found


def scan(elements: int, dtype: str, op: str = "cumsum") -> Sequence[Piece]:
    """A prefix sum by cub: one kernel sets up what the other waits on, block by block."""
    if not elements:
        return ()
    return (SET_UP, Piece(op, {"rows": 1.0, "cols": float(elements)}, dtype))


def _along(op: Op, position: int) -> tuple[int, int]:
    """(rows, cols) of the first tensor, that the op runs along."""
    values, dims = first(op), integers(op, position)
    if not values.shape or not size(values.shape):
        return 1, size(values.shape)
    cols = length(values, dims[0] if dims else -1)
    return size(values.shape) // cols, cols


@LOWERINGS.register(*entries("sort", "argsort", "msort"))
def sort(op: Op) -> Sequence[Piece]:
    """`sort(x, dim, …)`; `sort(x, stable, dim, …)` has a flag in front."""
    rows, cols = _along(op, 1)
    return sorted_rows(rows, cols, tensor(op, 0).dtype, pairs=False)


@LOWERINGS.register(*entries("topk", "kthvalue"))
def topk(op: Op) -> Sequence[Piece]:
    """`topk(x, k, dim, …)`."""
    rows, cols = _along(op, 2)
    if not rows * cols:
        return ()
    k = integer(op, 1)
    dims = {"rows": float(rows), "cols": float(cols), "k": float(max(k or 1, 1))}
    return (Piece("topk", dims, tensor(op, 0).dtype, launches=2, guessed=k is None),)


@LOWERINGS.register(
    *entries("_unique2", "unique_dim", "unique_consecutive", "_unique", "unique_dim_consecutive")
)
def unique(op: Op) -> Sequence[Piece]:
    """A sort and the distinct keys of it; the host waits for their number."""
    values = tensor(op, 0)
    count = size(values.shape)
    if not count:
        return ()
    dims = {"rows": 1.0, "cols": float(count)}
    launches = sort_launches(count, 8 * bytes_of(values.dtype)) + 4
    waited = Piece("copy_d2h", {"elements": 1.0}, "int64", kind="copy", blocks=True)
    return (Piece("unique", dims, values.dtype, launches=launches), waited)


@LOWERINGS.register(*entries("cumsum", "cumsum_", "cumprod", "logcumsumexp", "cummax", "cummin"))
def cumsum(op: Op) -> Sequence[Piece]:
    """`cumsum(x, dim)`: along the last of several dimensions one kernel, else two."""
    values = first(op)
    rows, cols = _along(op, 1)
    if not rows * cols:
        return ()
    if rows == 1:
        return scan(cols, values.dtype)
    return (Piece("cumsum", {"rows": float(rows), "cols": float(cols)}, values.dtype),)


@LOWERINGS.register(*entries("bucketize", "searchsorted"))
def bucketize(op: Op) -> Sequence[Piece]:
    """`bucketize(x, boundaries)`; `searchsorted(boundaries, x)`."""
    first, second = tensors(op, 2) if len(op.tensors) > 1 else tensors(op, 1) * 2
    values, boundaries = (first, second) if "bucketize" in op.name else (second, first)
    if not size(values.shape):
        return ()
    dims = {"rows": 1.0, "cols": float(size(values.shape))}
    dims["boundaries"] = float(max(size(boundaries.shape), 1))
    return (Piece("bucketize", dims, values.dtype),)
