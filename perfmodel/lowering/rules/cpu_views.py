"""On a CPU an operator that moves nothing still takes its thread's time."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.graph.ops import Op
from perfmodel.lowering.names import entries
from perfmodel.lowering.piece import LOWERINGS, WHOLE, Piece
from perfmodel.lowering.rules.silent import ALLOCATIONS, VIEWS
from perfmodel.ops.vocabulary.host import VIEW

_KINDS = {
    **dict.fromkeys(("detach", "alias"), "host_detach"),
    **dict.fromkeys(("t", "transpose", "permute"), "host_transpose"),
    "select": "host_select",
    **dict.fromkeys(("slice", "narrow"), "host_slice"),
}


@LOWERINGS.register(*entries(*VIEWS, *ALLOCATIONS, target="cpu", scope=WHOLE))
def view(op: Op) -> Sequence[Piece]:
    """A new tensor object, without a kernel."""
    return (Piece(_KINDS.get(op.name.removeprefix("aten::"), VIEW), kind="host"),)
