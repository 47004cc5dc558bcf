"""Thousands of configurations of one graph in a single pass in topological order.

Imported only where many are scheduled at once: the pass is compiled by Numba. Durations may be
float32, so that a block of them is small; ends are summed in float64, since a step is a sum of
thousands of them. Edges within a step only: what a step carries to later ones is
`timeline.steady`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import prange
from numpy.typing import NDArray

from perfmodel.arrays import Floats, Ints
from perfmodel.errors import UsageError
from perfmodel.graph.types import ExecutionGraph
from perfmodel.jit import compiled

AT_ONCE = 64
"""Configurations that one thread takes through the graph together: their ends stay in its cache."""


@compiled(parallel=True)
def _end_us_of_marks(
    order: Ints,
    first: Ints,
    source: Ints,
    lag_us: Floats,
    overlap_frac: Floats,
    release_us: Floats,
    duration_us: Floats,
    kept: Ints,
) -> Floats:
    """End of the nodes `kept` `[kept, configurations]`; arguments as in `batched.GraphArrays`."""
    nodes, configurations = duration_us.shape
    result = np.empty((len(kept), configurations), np.float64)
    for chunk in prange((configurations + AT_ONCE - 1) // AT_ONCE):
        begin = chunk * AT_ONCE
        width = min(AT_ONCE, configurations - begin)
        end = np.empty((nodes, width), np.float64)
        start = np.empty(width, np.float64)
        for at in range(nodes):
            node = order[at]
            start[:] = release_us[node]
            for edge in range(first[node], first[node + 1]):
                before, lag, share = source[edge], lag_us[edge], overlap_frac[edge]
                if share == 0.0:
                    for i in range(width):
                        start[i] = max(start[i], end[before, i] + lag)
                else:
                    for i in range(width):
                        free = end[before, i] - share * duration_us[before, begin + i]
                        start[i] = max(start[i], free + lag)
            for i in range(width):
                end[node, i] = start[i] + duration_us[node, begin + i]
        for row in range(len(kept)):
            result[row, begin : begin + width] = end[kept[row]]
    return result


Durations = NDArray[np.float32] | Floats
"""`[nodes, configurations]` microseconds."""


@dataclass(frozen=True)
class GraphArrays:
    """A graph as the arrays of its traversal: edges sorted by target, `first` of each node."""

    graph: ExecutionGraph
    order: Ints
    first: Ints
    source: Ints
    lag_us: Floats
    overlap_frac: Floats

    @classmethod
    def of(cls, graph: ExecutionGraph) -> GraphArrays:
        """Once per graph, for any number of blocks of configurations."""
        first, by_target = graph.predecessors
        edges = graph.edges_
        return cls(
            graph,
            graph.order.astype(np.int64),
            first.astype(np.int64),
            edges.source[by_target].astype(np.int64),
            edges.lag_us[by_target].astype(np.float64),
            edges.overlap_frac[by_target].astype(np.float64),
        )

    def end_us(self, duration_us: Durations, nodes: Ints | None = None) -> Floats:
        """When `nodes` (default: all) end `[nodes, configurations]`.

        Raises `UsageError` where `duration_us` is not one row per node.
        """

        if duration_us.ndim != 2 or len(duration_us) != len(self.graph):
            raise UsageError(
                f"durations of shape {duration_us.shape}: expected [{len(self.graph)} nodes, "
                "configurations]"
            )
        kept = np.arange(len(self.graph)) if nodes is None else nodes.astype(np.int64)
        result: Floats = _end_us_of_marks(
            self.order,
            self.first,
            self.source,
            self.lag_us,
            self.overlap_frac,
            self.graph.nodes_.release_us.astype(np.float64),
            np.ascontiguousarray(duration_us),
            kept,
        )
        return result

    def step_us(self, duration_us: Durations) -> Floats:
        """Duration of each row of `graph.marks` `[marks, configurations]`."""
        marks = self.graph.marks
        count = len(marks.end)
        ends = self.end_us(duration_us, np.concatenate([marks.end, marks.start]))
        result: Floats = ends[:count] - ends[count:]
        return result
