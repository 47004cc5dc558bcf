"""Nodes of the autograd engine that call nothing: what passes a gradient on as it is."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.graph.ops import Op
from perfmodel.lowering.names import entries
from perfmodel.lowering.piece import LEAF, LOWERINGS, Piece

PASSING_ON = (
    *("Add", "Sub", "Clone", "View", "UnsafeView", "ReshapeAlias", "Expand", "T", "Transpose"),
    *("Permute", "Squeeze", "Unsqueeze", "Alias", "AsStrided", "Detach", "ToCopy", "Contiguous"),
    *(
        "Broadcast",
        "Identity",
        "Dropout",
        "Select",
        "Slice",
        "Split",
        "Unbind",
        "Copy",
        "CopySlices",
    ),
    *("Unflatten", "Flatten", "Narrow", "Lift", "Positive"),
)


@LOWERINGS.register(
    *(f"any/{LEAF}{name}Backward{number}" for name in PASSING_ON for number in ("", "0", "1")),
    *entries("torch::autograd::AccumulateGrad", "torch::autograd::GraphRoot", scope=LEAF),
    *entries("torch::autograd::CopyBackwards", "torch::autograd::CopySlices", scope=LEAF),
    *entries("autograd::engine::evaluate_function: *", scope=LEAF),
)
def passes_on(op: Op) -> Sequence[Piece]:
    """Launches nothing itself; where it does, what it calls is in the graph."""
    return ()
