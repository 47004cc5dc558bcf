"""Every graph can be sorted: contradicting inferred dependencies are left out, and counted."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np

from perfmodel.errors import GraphError
from perfmodel.graph.kinds import CERTAIN_KINDS
from perfmodel.graph.lags import with_constant_lags
from perfmodel.graph.types import Edges, ExecutionGraph, Nodes


def acyclic(graph: ExecutionGraph, where: str) -> ExecutionGraph:
    """The graph itself; where inferred dependencies contradict one another (in damaged traces),
    without those that go backwards in measured time.

    Raises `GraphError` naming `where` and the cycle when what the file states is a cycle.
    """
    try:
        graph.order  # noqa: B018 (sorting finds the cycle)
        return graph
    except GraphError:
        nodes, edges = graph.nodes_, graph.edges_
    backwards = nodes.start_us[edges.source] >= nodes.start_us[edges.target]
    keep = np.flatnonzero(~backwards | np.isin(edges.kind, CERTAIN_KINDS))
    kept = Edges(*(getattr(edges, column.name)[keep] for column in fields(Edges)))
    if graph.arrivals is None:
        kept = with_constant_lags(nodes.start_us, nodes.duration_us, kept)
    left_out = graph.left_out + len(edges) - len(keep)
    mended = replace(graph, nodes_=released(nodes, kept), edges_=kept, left_out=left_out)
    try:
        mended.order  # noqa: B018
    except GraphError as error:
        raise GraphError(f"{where}: {error}: the times of this trace do not fit") from None
    return mended


def released(nodes: Nodes, edges: Edges) -> Nodes:
    """`nodes`, those that nothing precedes held until their measured start."""
    alone = np.bincount(edges.target, minlength=len(nodes)) == 0
    late = np.where(alone, np.maximum(nodes.release_us, nodes.start_us), nodes.release_us)
    return replace(nodes, release_us=late)
