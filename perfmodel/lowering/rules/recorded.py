"""Kernels of a profile that are ops of their own (`perfmodel.lowering.recorded`)."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.graph.ops import Op
from perfmodel.lowering.arguments import numbers
from perfmodel.lowering.piece import LOWERINGS, OF_PROFILE, WHOLE, Kind, Piece, Stream, Untold
from perfmodel.ops.vocabulary.recorded import RECORDED

KINDS: dict[str, Kind] = {"kernel": "kernel", "copy": "copy", "collective": "collective"}


@LOWERINGS.register(f"cuda/{WHOLE}{OF_PROFILE}*", f"rocm/{WHOLE}{OF_PROFILE}*")
def recorded(op: Op) -> Sequence[Piece]:
    """One operation that takes as long as it did."""
    kind = KINDS.get(op.attributes.get("kind", ""))
    if kind is None or "recorded_us" not in op.attributes:
        raise Untold
    dims = numbers(op, "recorded_us", "ratio", "spread")
    stream: Stream = "comm" if kind == "collective" else "compute"
    return (Piece(RECORDED, dims, kind=kind, stream=stream, blocks="blocks" in op.attributes),)


@LOWERINGS.register(f"cpu/{WHOLE}{OF_PROFILE}*")
def nothing(op: Op) -> Sequence[Piece]:
    """A CPU has no counterpart of a GPU's kernel."""
    return ()
