"""Kernels that compilers write: each its own op, with the tensors that it reads and writes."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.graph.ops import Op, Tensor
from perfmodel.lowering.arguments import size
from perfmodel.lowering.names import entries
from perfmodel.lowering.piece import LOWERINGS, Piece, Untold
from perfmodel.lowering.rules.elementwise import pointwise


@LOWERINGS.register(
    *(f"any/triton_{kind}_*" for kind in ("poi", "red", "per", "for")), *entries("triton::*")
)
def streamed(op: Op) -> Sequence[Piece]:
    """Streams its operands once; the last one is written."""
    tensors: list[Tensor] = [t for t in op.tensors if size(t.shape)]
    if not tensors:
        raise Untold
    return pointwise(tensors[:-1], tensors[-1:])
