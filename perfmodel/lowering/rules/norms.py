"""Softmax and normalisations, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.lowering.arguments import HOST, rows_cols, size, tensor
from perfmodel.lowering.piece import LOWERINGS, MissingArguments, Piece, entries
from perfmodel.lowering.rules.elementwise import pointwise
from perfmodel.lowering.rules.reduction import reduced
from perfmodel.ops.graph import Op, Tensor, argument, integer, integers, tensors_in

WEIGHT = 4
"""The tensor of a layer normalisation's backward pass that is its weight."""
TRAINING = 5
"""The argument of a batch normalisation that says whether it takes statistics."""


def along_last(
    op: str,
    values: Tensor,
    direction: str = "fwd",
    *,
    cols: int | None = None,
    launches: int = 1,
    strided: bool = False,
) -> Sequence[Piece]:
    """One row of the table over `values`, that run along the last `cols` elements; `strided`: along
    as many that do not lie side by side."""
    total = size(values.shape)
    if not total:
        return ()
    dims = rows_cols(values.shape)
    if cols:
        dims = {"rows": total / cols, "cols": float(cols)}
    if strided:
        dims["strided"] = 1.0
    return (Piece(op, dims, values.dtype, direction, launches=launches),)


def _normalised(op: Op, position: int) -> int | None:
    """Elements that one normalisation runs over: stated, else None for the last dimension."""
    shape = integers(op, position)
    return size(shape) if shape else None


def _of_weights_alone(op: Op, mask: int) -> Sequence[Piece]:
    """A backward pass that its `mask` does not ask for the gradient of the input: gradient and
    input are read once. Nothing where it asks, or is not known."""
    asked = argument(op, mask)
    if not isinstance(asked, tuple) or asked[:1] != (False,):
        return ()
    return pointwise([tensor(op, 0), tensor(op, 1)], list(tensors_in(op.outputs)))


@LOWERINGS.register(*entries("native_layer_norm_backward"))
def layer_norm_backward(op: Op) -> Sequence[Piece]:
    """Gradient of the input, then of weight and bias: gradient and input are summed together."""
    values, cols = tensor(op, 1), _normalised(op, 2)
    of_input = along_last("layer_norm", values, "bwd", cols=cols)
    if not of_input or len(op.tensors) <= WEIGHT:
        return of_input
    rows, width = (int(of_input[0].dims[name]) for name in ("rows", "cols"))
    both = Tensor((2 * rows, width), values.dtype)
    return _of_weights_alone(op, 7) or (*of_input, *reduced("sum", both, (1,)))


def per_channel(
    values: Tensor, direction: str = "fwd", *, launches: int = 1, **told: float
) -> Sequence[Piece]:
    """Batch normalisation of `values` (batch x channels x …)."""
    if len(values.shape) < 2:
        raise MissingArguments
    total, channels = size(values.shape), values.shape[1]
    if not total:
        return ()
    dims = {"rows": total / channels, "cols": float(channels), **told}
    return (Piece("batch_norm", dims, values.dtype, direction, launches=launches),)


@LOWERINGS.register(
    *entries("native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update")
)
def native_batch_norm(op: Op) -> Sequence[Piece]:
    """`(x, weight, bias, mean, variance, training, …)` by PyTorch's own kernels.

    In training statistics, running statistics, normalisation; else the last of them alone. What ran
    on a CPU would call the library.
    """
    values = tensor(op, 0)
    if argument(op, TRAINING) is False:
        return per_channel(values, native=1.0, statistics=0.0)
    if values.device == HOST:
        return per_channel(values)
    return per_channel(values, launches=3, native=1.0, beside=_beside(values))


def _beside(values: Tensor) -> float:
    """1 where channels lie side by side."""
    return float(len(values.shape) == 2)


@LOWERINGS.register(*entries("native_batch_norm_backward"))
def native_batch_norm_backward(op: Op) -> Sequence[Piece]:
    """The same by PyTorch's own kernels."""
    values = tensor(op, 0)
    if values.device == HOST:
        return per_channel(values, "bwd")
    return per_channel(values, "bwd", launches=2, native=1.0, beside=_beside(values))


@LOWERINGS.register(*entries("native_group_norm"))
def group_norm(op: Op) -> Sequence[Piece]:
    """`native_group_norm(x, weight, bias, N, C, HxW, groups, eps)`: statistics per group of a
    sample, then the normalisation."""
    return _per_group(op, tensor(op, 0), "fwd", 6)


@LOWERINGS.register(*entries("native_group_norm_backward"))
def group_norm_backward(op: Op) -> Sequence[Piece]:
    """`(gradient, x, mean, rstd, weight, N, C, HxW, groups, mask)`."""
    return _of_weights_alone(op, 9) or _per_group(op, tensor(op, 1), "bwd", 8)


def _per_group(op: Op, values: Tensor, direction: str, position: int) -> Sequence[Piece]:
    groups = integer(op, position)
    cols = size(values.shape[1:]) // groups if groups and values.shape else None
    return along_last("group_norm", values, direction, cols=cols, launches=2)
