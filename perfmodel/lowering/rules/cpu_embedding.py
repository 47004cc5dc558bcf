"""Embedding bags of PyTorch on a CPU: lookup, sparse gradient, and its update of the table.

How often rows repeat, and how many entries a sparse gradient has, comes with the op as attributes
(`perfmodel.graph.lookups`); without them indices are taken to be uniform.
"""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.graph.ops import Op, Tensor
from perfmodel.lowering.arguments import matrix, size, tensor
from perfmodel.lowering.names import entries
from perfmodel.lowering.piece import LOWERINGS, WHOLE, Piece, Untold
from perfmodel.lowering.rules.elementwise import named

REUSE = ("zipf_alpha", "unique_rows")
SPARSE = "sparse"


def _bag(
    op: Op, direction: str, table: tuple[int, int], lookups: int, batch: int, dtype: str
) -> Sequence[Piece]:
    if not lookups or not batch:
        return ()
    dims = {
        "hash_size": float(table[0]),
        "dim": float(table[1]),
        "batch": float(batch),
        "pooling": max(lookups / batch, 1.0),
        **{name: float(op.attributes[name]) for name in REUSE if name in op.attributes},
    }
    return (Piece("embedding_bag", dims, dtype, direction),)


@LOWERINGS.register(
    *entries("_embedding_bag", "_embedding_bag_forward_only", target="cpu", scope=WHOLE)
)
def forward(op: Op) -> Sequence[Piece]:
    """`_embedding_bag(weight, indices, offsets, …)`."""
    weight, indices, offsets = (tensor(op, place) for place in range(3))
    return _bag(op, "fwd", matrix(weight), size(indices.shape), size(offsets.shape), weight.dtype)


@LOWERINGS.register(*entries("_embedding_bag_backward", target="cpu", scope=WHOLE))
def backward(op: Op) -> Sequence[Piece]:
    """`_embedding_bag_backward(grad, indices, …, num_weights, …)`: a row of gradient per lookup."""
    grad, indices = tensor(op, 0), tensor(op, 1)
    batch, dim = matrix(grad)
    rows = next((int(it) for it in op.inputs[6:7] if isinstance(it, int)), size(indices.shape))
    return _bag(op, "bwd", (rows, dim), size(indices.shape), batch, grad.dtype)


@LOWERINGS.register(*entries("add_", target="cpu", scope=WHOLE))
def add(op: Op) -> Sequence[Piece]:
    """`add_(table, gradient)` with a sparse gradient; any other is elementwise."""
    tensors = op.tensors
    if len(tensors) < 2 or tensors[1].layout != SPARSE:
        return named(op)
    lookups = _entries(op)
    table: Tensor = tensors[0]
    return _bag(op, "update", matrix(table), lookups, lookups, table.dtype)


def _entries(op: Op) -> int:
    """Rows of gradient of the one table of `op`; raises `Untold`."""
    if op.attributes.get("tables", "1") != "1" or "lookups" not in op.attributes:
        raise Untold
    return round(float(op.attributes["lookups"]))
