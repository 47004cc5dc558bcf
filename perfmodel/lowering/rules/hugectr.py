"""Kernels that HugeCTR has and PyTorch has not: each reads and writes its operands once."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.graph.ops import Op, tensors_in
from perfmodel.lowering.arguments import tensor_bytes
from perfmodel.lowering.piece import LOWERINGS, Piece, Untold


@LOWERINGS.register("any/hugectr::*")
def streamed(op: Op) -> Sequence[Piece]:
    """One kernel over all operands, counted in the widest."""
    inputs, outputs = list(op.tensors), list(tensors_in(op.outputs))
    widest = max([*inputs, *outputs], key=tensor_bytes, default=None)
    if widest is None:
        raise Untold
    full = tensor_bytes(widest)
    if not full:
        return ()
    dims = {
        "elements": float(widest.elements),
        "reads": sum(map(tensor_bytes, inputs)) / full,
        "writes": sum(map(tensor_bytes, outputs)) / full,
    }
    return (Piece("elementwise", dims, widest.dtype),)
