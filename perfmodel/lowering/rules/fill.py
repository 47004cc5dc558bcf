"""Values that come from nowhere: fills, ranges, random numbers, dropout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perfmodel.lowering.arguments import (
    integers,
    layout_dims,
    output,
    rows_cols,
    size,
    tensor,
)
from perfmodel.lowering.piece import LEAF, LOWERINGS, MissingArguments, Piece, entries
from perfmodel.lowering.rules.elementwise import pointwise
from perfmodel.ops.graph import Op, Tensor

ONE_ELEMENT = Tensor((1,))


def fill_of(filled: Tensor) -> Sequence[Piece]:
    """One kernel that writes a tensor."""
    if not size(filled.shape):
        return ()
    if layout_dims([filled], filled.shape):
        return pointwise([], [filled], flop=0.0)
    return (Piece("fill", rows_cols(filled.shape), filled.dtype),)


@LOWERINGS.register(*entries("fill_", "fill", "eye_"), *entries("zero_", scope=LEAF))
def fill(op: Op) -> Sequence[Piece]:
    """Writes its first argument."""
    return fill_of(tensor(op, 0))


@LOWERINGS.register(
    *entries("zeros", "ones", "full", "new_zeros", "new_full", "new_ones", "arange", scope=LEAF),
    *entries("linspace", "eye", "scalar_tensor", scope=LEAF),
)
def new_tensor(op: Op) -> Sequence[Piece]:
    """Writes a new tensor of the shape that is stated."""
    result = output(op)
    if result is None:
        sizes = integers(op, 0)
        if sizes is None:
            raise MissingArguments
        result = Tensor(sizes)
    return fill_of(result)


@LOWERINGS.register(*entries("zeros_like", "ones_like", "full_like", scope=LEAF))
def like(op: Op) -> Sequence[Piece]:
    """Writes a new tensor of the shape of its first argument."""
    return fill_of(tensor(op, 0))


@LOWERINGS.register(*entries("arange", "linspace", "logspace", "tril_indices", "triu_indices"))
def range_of(op: Op) -> Sequence[Piece]:
    """Writes its output; one element at least where the graph does not say how many."""
    result = output(op)
    if result is not None:
        return fill_of(result)
    return tuple(replace(piece, guessed=True) for piece in fill_of(ONE_ELEMENT))


@LOWERINGS.register(
    *entries("uniform_", "normal_", "random_", "bernoulli_", "exponential_", "log_normal_"),
    *entries("bernoulli", "multinomial", "geometric_", "cauchy_", "poisson"),
)
def random(op: Op) -> Sequence[Piece]:
    """Writes random numbers into its first argument."""
    filled = tensor(op, 0)
    if not size(filled.shape):
        return ()
    return (Piece("random", {"elements": float(size(filled.shape))}, filled.dtype),)


@LOWERINGS.register(
    *entries("native_dropout", "_fused_dropout"),
    *entries("dropout", "dropout_", "feature_dropout", scope=LEAF),
)
def dropout(op: Op) -> Sequence[Piece]:
    """Reads a tensor, writes it and a mask of bytes."""
    values = tensor(op, 0)
    return pointwise([values], [values, Tensor(values.shape, "bool")], flop=10.0)
