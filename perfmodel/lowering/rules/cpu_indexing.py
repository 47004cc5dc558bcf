"""Indexing by several index tensors on a CPU, where leading dimensions may be kept."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.graph.ops import Op
from perfmodel.lowering.arguments import result_shape, size, tensor
from perfmodel.lowering.names import entries
from perfmodel.lowering.piece import LOWERINGS, WHOLE, Piece


@LOWERINGS.register(*entries("index", "_unsafe_index", target="cpu", scope=WHOLE))
def index(op: Op) -> Sequence[Piece]:
    """`index(table, indices)`: an element at a time."""
    elements = size(result_shape(op))
    dims = {"rows": float(elements), "cols": 1.0, "hash_size": float(size(tensor(op, 0).shape))}
    return (Piece("gather", dims, tensor(op, 0).dtype),) if elements else ()


@LOWERINGS.register(
    *entries(
        "_index_put_impl_",
        "index_put",
        "index_put_",
        "_unsafe_index_put",
        target="cpu",
        scope=WHOLE,
    )
)
def index_put(op: Op) -> Sequence[Piece]:
    """`index_put(table, indices, values)`: an element at a time."""
    table, values = tensor(op, 0), op.tensors[-1]
    elements = size(values.shape)
    dims = {"rows": float(elements), "cols": 1.0, "hash_size": float(size(table.shape))}
    return (Piece("index_put", dims, table.dtype),) if elements else ()
