"""The execution graph of a trace: what ran on which resource, and what it waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfmodel.base.registry import exports
from perfmodel.errors import TraceError
from perfmodel.timeline.graph.build import build_rank
from perfmodel.timeline.graph.measured_waits import with_measured_waits
from perfmodel.timeline.graph.merge import merge
from perfmodel.timeline.graph.types import ExecutionGraph
from perfmodel.trace import Trace

if TYPE_CHECKING:
    from perfmodel.timeline.graph.kinds import Cause as Cause

__getattr__, __dir__, _later = exports(__name__)
__all__ = sorted([*_later, "ExecutionGraph", "build_graph", "build_rank"])


def build_graph(trace: Trace) -> ExecutionGraph:
    """The execution graph of a trace; where it has several ranks, their collectives meet.

    Raises `TraceError` when the trace holds no timed events, and when its ranks do not fit.
    """
    if not trace.ranks:
        raise TraceError(f"{trace.source}: an execution trace without timings: give a Kineto trace")
    ranks = list(zip(trace.ranks, trace.links, strict=True))
    for rank, links in ranks:
        if not len(links.steps):
            raise TraceError(
                f"{rank.where}: holds no host or device events: nothing happened in it"
            )
    graphs = []
    for rank, links in ranks:
        graphs.append(with_measured_waits(build_rank(rank, links)))
    if len(graphs) == 1:
        return graphs[0]
    return merge(graphs, [r.origin_ns for r in trace.ranks], [r.where for r in trace.ranks])
