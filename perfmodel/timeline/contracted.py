"""A graph made ready for a dozen schedules, for which loading a compiler would take too long.

Along a thread or a stream most operations wait for the one before them alone. A run of these takes
the sum of its lengths; only where several edges meet, at the head of the next run, a maximum is
taken. A trace has a quarter as many heads as nodes. `timeline.batched` is for thousands.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from perfmodel.arrays import Floats, Ints
from perfmodel.graph.types import ExecutionGraph
from perfmodel.trace.columns import NONE


@dataclass(frozen=True)
class _WaysToHeads:
    """Ways to heads, one row each: an edge, or what is as fixed as the clock."""

    target: Ints
    """Place of the run that it leads to."""
    edge: Ints
    """-1 for what is no edge."""
    source: Ints
    """Place of the run that it comes from; behind the last run, the clock's zero."""
    fixed_us: Floats
    """What it adds to the start of its source, where it is no edge."""

    def of(self, rows: Ints) -> _WaysToHeads:
        return _WaysToHeads(*(column[rows] for column in vars(self).values()))


@dataclass(frozen=True)
class ContractedGraph:
    """Runs of a graph, and pairs of ways into their heads in the order in which they are decided.

    Rows hold the nodes run by run. Where more than two ways lead to a head, its start so far is
    one of the next pair; where one does, it stands beside one that is never the later.
    """

    graph: ExecutionGraph
    row: Ints
    """Per node."""
    into: Ints
    """Per row: the edge from the row before, or -1 at the head of a run."""
    head: Ints
    """Per row: the row of its run's head."""
    place: Ints
    """Per row: which run it belongs to."""
    first: _WaysToHeads
    second: _WaysToHeads

    @classmethod
    def of(cls, graph: ExecutionGraph, order: Ints | None = None) -> ContractedGraph:
        """`order`: one that puts the sources of all edges before their targets, where known."""
        count, nodes, edges = len(graph), graph.nodes_, graph.edges_
        order = graph.order if order is None else order
        position = np.empty(count, np.int64)
        position[order] = np.arange(count)
        is_small = len(graph.resources) < np.iinfo(np.int16).max
        resource = nodes.resource.astype(np.int16 if is_small else np.int64)  # sorts much faster
        resource[graph.marks.start] = resource[graph.marks.end] = len(graph.resources)
        node = order[np.argsort(resource[order], kind="stable")]
        row = np.empty(count, np.int64)
        row[node] = np.arange(count)
        alone = np.bincount(edges.target, minlength=count) == 1
        alone &= np.isneginf(nodes.release_us)
        source, target = edges.source.astype(np.int64), edges.target.astype(np.int64)
        goes_on = (row[source] + 1 == row[target]) & alone[target]
        goes_on &= resource[source] == resource[target]
        into = np.full(count, NONE, np.int64)
        into[row[target[goes_on]]] = np.flatnonzero(goes_on)
        head = np.maximum.accumulate(np.where(into == NONE, np.arange(count), 0))
        heads = np.flatnonzero(into == NONE)
        place = np.cumsum(into == NONE) - 1

        released = node[heads][~np.isneginf(nodes.release_us[node[heads]])]
        meeting, clock = np.flatnonzero(~goes_on), np.full(len(released), len(heads))
        ways = _WaysToHeads(
            np.concatenate([place[row[target[meeting]]], place[row[released]]]),
            np.concatenate([meeting, np.full(len(released), NONE)]),
            np.concatenate([place[row[source[meeting]]], clock]),
            np.concatenate([np.zeros(len(meeting)), nodes.release_us[released]]),
        )
        decided = np.argsort(position[node[heads]][ways.target], kind="stable")
        return cls(graph, row, into, head, place, *_in_pairs(ways.of(decided), len(heads)))

    def with_edges_of(self, graph: ExecutionGraph) -> ContractedGraph:
        """`graph`, which has the same nodes and other edges or lags, made ready."""
        edges, others = self.graph.edges_, graph.edges_
        if edges.source is others.source and edges.target is others.target:
            return replace(self, graph=graph)
        return ContractedGraph.of(graph, self.graph.order)

    @cached_property
    def _goes_on(self) -> Ints:
        return np.flatnonzero(self.into != NONE)

    @cached_property
    def _targets_and_sources(self) -> tuple[list[int], list[int], list[int]]:
        """Per pair: its head, and where its two ways come from."""
        first, second = self.first, self.second
        return first.target.tolist(), first.source.tolist(), second.source.tolist()

    def step_us(self, duration_us: Floats) -> Floats:
        """Duration of each row of the graph's marks with these durations of its nodes."""
        graph, edges = self.graph, self.graph.edges_
        lag_us = edges.lag_us
        overlaps = np.flatnonzero(edges.overlap_frac)
        if len(overlaps):
            lag_us = lag_us.copy()
            source = edges.source[overlaps]
            lag_us[overlaps] -= edges.overlap_frac[overlaps] * duration_us[source]
        taken = np.empty(len(self.row))
        taken[self.row] = duration_us
        goes_on = self._goes_on
        taken[goes_on] += lag_us[self.into[goes_on]]
        until = np.cumsum(taken)
        until -= (until - taken)[self.head]

        def length_us(ways: _WaysToHeads) -> list[float]:
            is_edge = np.flatnonzero(ways.edge != NONE)
            edge, along = ways.edge[is_edge], ways.fixed_us.copy()
            along[is_edge] = until[self.row.take(edges.source[edge])] + lag_us[edge]
            length: list[float] = along.tolist()
            return length

        start = [-np.inf] * int(self.place[-1] + 1) + [0.0]
        targets, sources, others = self._targets_and_sources
        pairs = zip(
            targets, sources, length_us(self.first), others, length_us(self.second), strict=True
        )
        for target, one, one_us, other, other_us in pairs:
            begin, later = start[one] + one_us, start[other] + other_us
            start[target] = begin if begin > later else later
        marks = self.row[np.concatenate([graph.marks.end, graph.marks.start])]
        ends = np.array(start)[self.place[marks]] + until[marks]
        result: Floats = ends[: len(graph.marks.end)] - ends[len(graph.marks.end) :]
        return result


def _in_pairs(ways: _WaysToHeads, clock: int) -> tuple[_WaysToHeads, _WaysToHeads]:
    """Ways sorted by the head that they lead to, two by two; `clock` is the place of its zero."""
    begins = np.diff(ways.target, prepend=NONE) != 0
    ends = np.diff(ways.target, append=NONE) != 0
    is_second = ~begins | ends
    second, first = ways.of(np.flatnonzero(is_second)), ways.of(np.flatnonzero(is_second) - 1)
    alone = (begins & ends)[is_second]
    nth = np.arange(len(begins)) - np.maximum.accumulate(
        np.where(begins, np.arange(len(begins)), 0)
    )
    so_far = nth[is_second] > 1
    first = _WaysToHeads(
        second.target,
        np.where(alone | so_far, NONE, first.edge),
        np.select([alone, so_far], [clock, second.target], first.source),
        np.select([alone, so_far], [-np.inf, 0.0], first.fixed_us),
    )
    return first, second
