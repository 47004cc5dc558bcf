"""An op graph as a frame, an HTML table, or a networkx graph."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from perfmodel.graph.ops import NO_OP, PHASES, OpGraph, Tensor, tensors_in

if TYPE_CHECKING:
    import networkx as nx
    import pandas as pd

_ROWS = 25
"""Ops in the HTML table: those called most often."""


def shape_text(tensor: Tensor) -> str:
    """`512x64`; `scalar` without dimensions."""
    return "x".join(map(str, tensor.shape)) or "scalar"


def frame_of(graph: OpGraph) -> pd.DataFrame:
    """One row per op."""
    import pandas as pd

    ops = graph.ops
    return pd.DataFrame(
        {
            "name": [op.name for op in ops],
            "phase": [op.phase for op in ops],
            "thread": [op.thread for op in ops],
            "step": [op.step for op in ops],
            "parent": [op.parent for op in ops],
            "input_shapes": [" ".join(map(shape_text, op.tensors)) for op in ops],
            "input_dtypes": [" ".join(tensor.dtype for tensor in op.tensors) for op in ops],
            "output_shapes": [" ".join(map(shape_text, tensors_in(op.outputs))) for op in ops],
            "event": [op.event for op in ops],
            "attributes": [dict(op.attributes) for op in ops],
        }
    )


def networkx_of(graph: OpGraph) -> nx.DiGraph:
    """Nodes by index with `name`, `phase`, `thread`, `step`; edges with `kind`."""
    import networkx as nx

    found: nx.DiGraph = nx.DiGraph()
    for index, op in enumerate(graph.ops):
        found.add_node(index, name=op.name, phase=op.phase, thread=op.thread, step=op.step)
        if op.parent != NO_OP:
            found.add_edge(op.parent, index, kind="calls")
    found.add_edges_from(graph.data.tolist(), kind="data")
    return found


def html_of(graph: OpGraph) -> str:
    """A table of the outermost ops by phase and name, most frequent first, and the notes."""
    from html import escape

    from perfmodel.plot import table_html

    outermost = [graph.ops[index] for index in graph.top_level()]
    count = Counter((op.phase, op.name) for op in outermost)
    rows = [
        [phase, name, calls]
        for (phase, name), calls in sorted(
            count.most_common(_ROWS), key=lambda row: (PHASES.index(row[0][0]), -row[1])
        )
    ]
    steps = len({op.step for op in graph.ops})
    caption = (
        f"{graph.source} rank {graph.rank}: {len(graph)} ops, {len(outermost)} outermost, "
        f"{len(graph.data)} data dependencies, {steps} steps"
    )
    notes = "".join(f"<p>{escape(note)}</p>" for note in graph.notes)
    return table_html(rows, ["phase", "op", "calls"], caption) + notes
