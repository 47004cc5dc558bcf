"""Steps launched as one CUDA graph."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from perfmodel.graph.opgraph.edits.edited import Edited
from perfmodel.graph.ops import OpGraph

_WAITING = (
    *("aten::item", "aten::_local_scalar_dense", "aten::nonzero", "aten::unique", "aten::_unique2"),
    *("aten::masked_select", "aten::equal", "torch::cuda::synchronize"),
)
"""Ops during which the host waits for what the device makes: a graph cannot hold them."""


def cuda_graphs(graph: OpGraph) -> Edited:
    """`graph` marked to be launched as one graph per step; lowering to a GPU honours it.

    `undone` names the ops that no such graph can hold; they stay in it.
    """
    if graph.cuda_graphs:
        return Edited(graph, ("each step is launched as one graph already",))
    waiting = Counter(op.name for op in graph.ops if op.name in _WAITING)
    undone = tuple(
        f"{count} calls of {name} wait for the device: a CUDA graph cannot hold them"
        for name, count in waiting.most_common()
    )
    return Edited(replace(graph, cuda_graphs=True, notes=(*graph.notes, "CUDA graphs")), undone)
