"""Losses on a CPU, where logarithms of every element count."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.graph.ops import Op
from perfmodel.lowering.arguments import rows_cols, size, tensor
from perfmodel.lowering.names import entries
from perfmodel.lowering.piece import LOWERINGS, WHOLE, Piece


@LOWERINGS.register(*entries("binary_cross_entropy", target="cpu", scope=WHOLE))
def forward(op: Op) -> Sequence[Piece]:
    """`binary_cross_entropy(input, target, …)`."""
    values = tensor(op, 0)
    if not size(values.shape):
        return ()
    return (Piece("binary_cross_entropy", rows_cols(values.shape), values.dtype),)


@LOWERINGS.register(*entries("binary_cross_entropy_backward", target="cpu", scope=WHOLE))
def backward(op: Op) -> Sequence[Piece]:
    """`binary_cross_entropy_backward(grad, input, target, …)`."""
    values = tensor(op, 1)
    if not size(values.shape):
        return ()
    return (Piece("binary_cross_entropy", rows_cols(values.shape), values.dtype, "bwd"),)
