"""The traversal: start and end of every node, each as early as its predecessors allow."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from perfmodel.graph.types import ExecutionGraph
from perfmodel.trace.columns import Floats


@dataclass(frozen=True)
class Timeline:
    """Start and end of every node of `graph`, in microseconds of the graph's clock."""

    graph: ExecutionGraph
    start_us: Floats
    end_us: Floats

    @cached_property
    def step_us(self) -> Floats:
        """Duration of each row of `graph.marks`."""
        marks = self.graph.marks
        return self.end_us[marks.end] - self.end_us[marks.start]


def schedule(graph: ExecutionGraph, duration_us: Floats | None = None) -> Timeline:
    """Schedule `graph` with a duration per node (default: as measured)."""
    duration = graph.nodes_.duration_us if duration_us is None else duration_us
    first, by_target = graph.predecessors
    edges = graph.edges_
    lag = edges.lag_us - edges.overlap_frac * duration[edges.source]
    source, lag = edges.source[by_target].tolist(), lag[by_target].tolist()
    start = graph.nodes_.release_us.tolist()
    end = [0.0] * len(start)
    taken = duration.tolist()
    bounds = first.tolist()
    for node in graph.order.tolist():
        begin = start[node]
        for edge in range(bounds[node], bounds[node + 1]):
            ready = end[source[edge]] + lag[edge]
            if ready > begin:
                begin = ready
        start[node] = begin
        end[node] = begin + taken[node]
    return Timeline(graph, np.array(start), np.array(end))


def measured(graph: ExecutionGraph) -> Timeline:
    """The timeline as it was recorded."""
    return Timeline(graph, graph.nodes_.start_us, graph.nodes_.end_us)
