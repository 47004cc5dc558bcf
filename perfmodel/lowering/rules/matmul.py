"""Matrix products and what is composed of one."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.graph.ops import Op, Tensor
from perfmodel.lowering.arguments import matrix, optional_tensor, size, tensor
from perfmodel.lowering.names import entries
from perfmodel.lowering.piece import LEAF, LOWERINGS, Piece, Untold


def product(
    op: str, left: Tensor, right: Tensor, *, batch: int = 1, bias: bool = False
) -> Sequence[Piece]:
    """`left` (m x k) times `right` (k x n), last two dimensions; nothing where one is empty."""
    if len(left.shape) < 2 or len(right.shape) < 2:
        raise Untold
    m, k = left.shape[-2:]
    n = right.shape[-1]
    return _piece(op, left.dtype, batch, m, n, k, bias)


def _piece(
    op: str, dtype: str, batch: int, m: int, n: int, k: int, bias: bool = False
) -> Sequence[Piece]:
    if not batch * m * n * k:
        return ()
    dims: dict[str, float] = {"b": batch, "m": m, "n": n, "k": k}
    if op == "linear":
        dims["bias"] = float(bias)
    return (Piece(op, dims, dtype),)


@LOWERINGS.register(*entries("mm", "_int_mm", "mm_out"))
def mm(op: Op) -> Sequence[Piece]:
    """`mm(a, b)`."""
    return product("mm", tensor(op, 0), tensor(op, 1))


@LOWERINGS.register(*entries("_scaled_mm"))
def scaled_mm(op: Op) -> Sequence[Piece]:
    """`_scaled_mm(a, b, scales …)` of fp8 operands."""
    return product("mm", tensor(op, 0), tensor(op, 1))


@LOWERINGS.register(*entries("addmm", "addmm_", "_addmm_activation"))
def addmm(op: Op) -> Sequence[Piece]:
    """`addmm(bias, a, b)`: a linear layer."""
    return product("linear", tensor(op, 1), tensor(op, 2), bias=True)


@LOWERINGS.register(*entries("bmm"))
def bmm(op: Op) -> Sequence[Piece]:
    """`bmm(a, b)`."""
    left = tensor(op, 0)
    return product("bmm", left, tensor(op, 1), batch=size(left.shape[:-2]))


@LOWERINGS.register(*entries("baddbmm", "baddbmm_", "addbmm"))
def baddbmm(op: Op) -> Sequence[Piece]:
    """`baddbmm(c, a, b)`."""
    left = tensor(op, 1)
    return product("bmm", left, tensor(op, 2), batch=size(left.shape[:-2]))


@LOWERINGS.register(*entries("mv", "addmv", "addmv_"))
def mv(op: Op) -> Sequence[Piece]:
    """`mv(a, x)`, `addmv(y, a, x)`."""
    left = tensor(op, len(op.tensors) - 2)
    m, k = matrix(left)
    return _piece("mm", left.dtype, 1, m, 1, k)


@LOWERINGS.register(*entries("dot", "vdot"))
def dot(op: Op) -> Sequence[Piece]:
    """`dot(x, y)`."""
    vector = tensor(op, 0)
    return _piece("mm", vector.dtype, 1, 1, 1, size(vector.shape))


@LOWERINGS.register(*entries("linear", scope=LEAF))
def linear(op: Op) -> Sequence[Piece]:
    """`linear(x, weight, bias?)`: rows of `x` times the transposed weight."""
    values, weight = tensor(op, 0), tensor(op, 1)
    m, (n, k) = size(values.shape[:-1]), matrix(weight)
    return _piece("linear", values.dtype, 1, m, n, k, optional_tensor(op, 2) is not None)


@LOWERINGS.register(*entries("matmul", "einsum_pair", scope=LEAF))
def matmul(op: Op) -> Sequence[Piece]:
    """`matmul(a, b)` with leading dimensions folded as PyTorch folds them."""
    left, right = tensor(op, 0), tensor(op, 1)
    if len(left.shape) < 2 or len(right.shape) < 2:
        raise Untold
    if len(right.shape) == 2:
        m, k = size(left.shape[:-1]), left.shape[-1]
        return _piece("mm", left.dtype, 1, m, right.shape[-1], k)
    batch = max(size(left.shape[:-2]), size(right.shape[:-2]))
    return product("bmm", left, right, batch=batch)
