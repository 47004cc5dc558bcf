"""Kernels of a profile that are ops of their own (`perfmodel.lowering.recorded`)."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.graph.ops import Op
from perfmodel.lowering.arguments import numbers
from perfmodel.lowering.piece import LOWERINGS, OF_PROFILE, WHOLE, Piece
from perfmodel.ops.vocabulary.recorded import RECORDED


@LOWERINGS.register(f"cuda/{WHOLE}{OF_PROFILE}*", f"rocm/{WHOLE}{OF_PROFILE}*")
def recorded(op: Op) -> Sequence[Piece]:
    """One operation that takes as long as it did."""
    kind, blocks = op.attributes["kind"], "blocks" in op.attributes
    stream = "comm" if kind == "collective" else "compute"
    dims = numbers(op, "recorded_us", "ratio", "spread")
    return (Piece(RECORDED, dims, kind=kind, stream=stream, blocks=blocks),)  # type: ignore[arg-type]


@LOWERINGS.register(f"cpu/{WHOLE}{OF_PROFILE}*")
def nothing(op: Op) -> Sequence[Piece]:
    """A CPU has no counterpart of a GPU's kernel."""
    return ()
