"""`nn.EmbeddingBag`: pooled lookups in one table, and their gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perfmodel.graph.ops import Op, Tensor
from perfmodel.lowering.arguments import REUSE, argument, length, matrix, numbers, size, tensor
from perfmodel.lowering.names import entries
from perfmodel.lowering.piece import LEAF, LOWERINGS, WHOLE, Piece, Untold
from perfmodel.lowering.rules.fill import fill_of

SORT_LAUNCHES = 8
"""Kernels of sorting the indices and finding their runs, before the gradient of a dense table."""


def bag(table: Tensor, lookups: int, bags: int, op: Op) -> Piece:
    """`lookups` rows in `bags` bags; reuse as far as the op's attributes tell it."""
    rows, dim = matrix(table)
    if not bags:
        raise Untold
    dims = {
        "hash_size": float(rows),
        "dim": float(dim),
        "batch": float(bags),
        "pooling": lookups / bags,
    }
    if dims["pooling"] < 1:
        dims |= {"batch": float(lookups), "pooling": 1.0}
    dims |= numbers(op, *REUSE)
    return Piece("embedding_bag", dims, table.dtype)


@LOWERINGS.register(
    *entries("_embedding_bag", "_embedding_bag_forward_only"),
    *entries("embedding_bag", scope=LEAF),
)
def embedding_bag(op: Op) -> Sequence[Piece]:
    """`_embedding_bag(weight, indices, offsets, …)`."""
    table, indices, offsets = tensor(op, 0), tensor(op, 1), tensor(op, 2)
    lookups, bags = size(indices.shape), size(offsets.shape)
    return (bag(table, lookups, bags, op),) if lookups and bags else ()


@LOWERINGS.register(*entries("_embedding_bag_dense_backward", scope=WHOLE))
def dense_backward(op: Op) -> Sequence[Piece]:
    """`_embedding_bag_dense_backward(gradient, indices, offset2bag, …, num_weights, …)`."""
    gradient, indices = tensor(op, 0), tensor(op, 1)
    lookups = size(indices.shape)
    counts = [
        item for item in op.inputs[2:] if isinstance(item, int) and not isinstance(item, bool)
    ]
    rows = counts[0] if counts else lookups
    if not lookups or not gradient.shape:
        return ()
    table = Tensor((rows, gradient.shape[-1]), gradient.dtype)
    piece = bag(table, lookups, gradient.shape[0], op)
    return (
        replace(
            piece,
            dims={**piece.dims, "dense": 1.0},
            direction="bwd",
            launches=SORT_LAUNCHES,
            guessed=not counts,
        ),
    )


@LOWERINGS.register(*entries("_embedding_bag_sparse_backward", scope=LEAF))
def sparse_backward(op: Op) -> Sequence[Piece]:
    """A row of gradient per lookup: `index_select` of the bags' gradients."""
    gradient, indices = tensor(op, 0), tensor(op, 1)
    lookups = size(indices.shape)
    if not lookups:
        return ()
    piece = bag(gradient, lookups, length(gradient, 0), op)
    return (replace(piece, direction="bwd"),)


@LOWERINGS.register(*entries("embedding_dense_backward", scope=WHOLE))
def embedding_dense_backward(op: Op) -> Sequence[Piece]:
    """Zeros for the table, the indices sorted, the rows added."""
    gradient, indices = tensor(op, 0), tensor(op, 1)
    rows = argument(op, 2)
    lookups, dim = size(indices.shape), length(gradient, -1)
    if not lookups:
        return ()
    held = rows if isinstance(rows, int) and not isinstance(rows, bool) else lookups
    dims = {"rows": float(lookups), "cols": float(dim), "hash_size": float(held)}
    return (
        *fill_of(Tensor((held, dim), gradient.dtype)),
        Piece("embedding", dims, gradient.dtype, "bwd", launches=SORT_LAUNCHES),
    )
