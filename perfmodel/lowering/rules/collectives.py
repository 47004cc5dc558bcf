"""Collectives, from what the op graph says of them (`perfmodel.ops.read.attributes`)."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.lowering.arguments import bytes_of
from perfmodel.lowering.piece import LEAF, LOWERINGS, Piece, entries
from perfmodel.ops.graph import Op

RECEIVED = ("all_gather", "gather", "recv")
"""Collectives whose size is what a rank ends up with; of all others, what it gives."""
EXCHANGED = ("all_to_all",)
"""Collectives that take as long as the larger of what a rank gives and gets."""
TABLE = {
    "gather": "all_gather",
    "scatter": "broadcast",
    "send": "send_recv",
    "recv": "send_recv",
    "barrier": "barrier",
}
NOTHING = ("wait", "init", "work_wait")
KNOWN = (
    *("all_reduce", "all_to_all", "all_gather", "reduce_scatter", "broadcast", "reduce"),
    *("send_recv", "barrier"),
)
ONE_BYTE = 1.0


@LOWERINGS.register(
    "any/record_param_comms",
    *entries("c10d::*", "c10d_functional::*", "_c10d_functional::*", scope=LEAF),
)
def collective(op: Op) -> Sequence[Piece]:
    """One kernel on the stream of collectives; a size that is not told stands at one byte."""
    about = op.attributes
    word = about.get("collective", "")
    if word in NOTHING or not word:
        return ()
    name = TABLE.get(word, word)
    if name not in KNOWN:
        return ()
    elements = about.get("out_elements" if word in RECEIVED else "in_elements")
    if word in EXCHANGED:
        elements = max(elements, about.get("out_elements"), key=lambda text: float(text or 0))
    dtype = about.get("dtype", "fp32")
    size_bytes = float(elements or 0) * bytes_of(dtype)
    dims = {"size_bytes": max(size_bytes, ONE_BYTE), "ranks": float(about.get("group_size", 2))}
    dims |= {key: float(about[key]) for key in ("nodes", "in_network", "custom") if key in about}
    guessed = elements is None and name != "barrier"
    return (Piece(name, dims, dtype, kind="collective", stream="comm", guessed=guessed),)
