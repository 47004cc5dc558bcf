"""Recorded steps as steps that repeat: each by itself, with what it carries to the one after it.

An operation belongs to the step that launched it, however late it runs. What a step waits for of
steps before it is carried: from the end of the host's step to the beginning of the next, from the
last operation of each stream to the first, and along the dependencies that were found across the
step's start, each from the operation as far from the end of its thread or stream.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.arrays import Floats, Ints, Mask, distinct, has_code
from perfmodel.graph.kinds import LAUNCH_KINDS, STREAM_KINDS, EdgeKind, NodeKind
from perfmodel.graph.types import Edges, ExecutionGraph
from perfmodel.trace.columns import NONE

QUEUE_DEPTH = 1024
"""Launches that a host may be ahead of its device, where the file shows no other depth. Source: the
depth at which launch calls of CUDA begin to wait in traces of V100 and A100."""
_STREAM_OF_KIND = {
    NodeKind.KERNEL: EdgeKind.STREAM,
    NodeKind.COPY: EdgeKind.STREAM_COPY,
    NodeKind.COLLECTIVE: EdgeKind.STREAM_COLLECTIVE,
}


@dataclass(frozen=True)
class RecordedStep:
    """A step of a rank, or of ranks that meet, as one that goes on for ever."""

    index: int
    """Which of the ranks' steps it is."""
    ranks: tuple[int, ...]
    nodes: Ints
    """Rows of the graph that are its nodes, in an order in which edges within it go forward."""
    edges: Edges
    """Between places in `nodes`."""
    distance: Ints
    """How many steps later the target of each edge is."""


def recorded_steps(graph: ExecutionGraph, steps: Ints) -> list[RecordedStep]:
    """The chosen steps of a graph, of each rank by itself where ranks do not meet.

    Rank by rank, then step by step. None of a graph whose one step is the window of its events.
    """
    if is_window(graph):
        return []
    ranks = distinct(graph.marks.rank).tolist()
    groups = [tuple(ranks)] if graph.arrivals is not None else [(rank,) for rank in ranks]
    layout = _Layout.of(graph)
    return [layout.step(index, group) for group in groups for index in steps.tolist()]


def is_window(graph: ExecutionGraph) -> bool:
    """Whether the graph's one step is the window of its events, which nothing follows."""
    return not graph.marks.name or graph.marks.name == ("window",) * len(graph.marks.name)


def step_of_nodes(graph: ExecutionGraph) -> Ints:
    """Per node: index of the step of its rank that it is part of, or -1.

    Host work by when it began, device work by when it was launched; what has no launch call as the
    operation before it on its stream, on streams without any by when it began. What runs ahead of
    every launched operation was launched before the recording: it is part of a sole step, of which
    it is all that is known, and of none of several. The start of a step is part of none.
    """
    nodes, edges, marks = graph.nodes_, graph.edges_, graph.marks
    step = np.full(len(graph), NONE, np.int64)
    for rank in distinct(marks.rank).tolist():
        own = np.flatnonzero(marks.rank == rank)
        rows = np.flatnonzero((nodes.rank == rank) & (nodes.kind != NodeKind.MARK))
        begun, over = nodes.start_us[marks.start[own]], nodes.start_us[marks.end[own]]
        at = np.searchsorted(begun, nodes.start_us[rows], side="right") - 1
        step[rows] = np.where(nodes.start_us[rows] < over[at], at, NONE)
        step[marks.end[own]] = np.arange(len(own))
    last = (step[edges.target] != NONE) & (nodes.kind[edges.target] == NodeKind.MARK)
    step[edges.source[last]] = step[edges.target[last]]
    launches = np.flatnonzero(has_code(edges.kind, LAUNCH_KINDS))
    step[edges.target[launches]] = step[edges.source[launches]]
    work, before = _launched_before(graph)
    known = before != NONE
    step[work[known]] = step[before[known]]
    if len(marks.name) > len(distinct(marks.rank)):
        step[work[~known]] = NONE
    if graph.arrivals is not None:
        step[graph.arrivals[:, 0]] = step[graph.arrivals[:, 1]]
        meets = (edges.kind == EdgeKind.RENDEZVOUS) & (nodes.kind[edges.target] == NodeKind.MARK)
        step[edges.target[meets]] = NONE
        np.maximum.at(step, edges.target[meets], step[edges.source[meets]])
    waits = (nodes.kind[edges.source] == NodeKind.WAIT) & (edges.kind == EdgeKind.PROGRAM)
    waits &= graph.on_device[edges.target]
    step[edges.source[waits]] = step[edges.target[waits]]
    return step


def _launched_before(graph: ExecutionGraph) -> tuple[Ints, Ints]:
    """Device work without a launch call, on streams where other work has one, and the operation
    with one that is the last before it there, or -1."""
    nodes, edges = graph.nodes_, graph.edges_
    launched = np.zeros(len(graph), np.bool_)
    launched[edges.target[has_code(edges.kind, LAUNCH_KINDS)]] = True
    work = np.flatnonzero(graph.on_device)
    streams = distinct(nodes.resource[work[launched[work]]])
    work = work[np.isin(nodes.resource[work], streams)]
    work = work[np.lexsort((nodes.start_us[work], nodes.resource[work]))]
    first = np.searchsorted(nodes.resource[work], nodes.resource[work], side="left")
    last = np.maximum.accumulate(np.where(launched[work], np.arange(len(work)), NONE))
    before = np.where(last >= first, work[last], NONE)
    return work[~launched[work]], before[~launched[work]]


def earlier_work(graph: ExecutionGraph) -> Ints:
    """Device work that ran ahead of every launched operation of its stream: it was launched before
    the recording began."""
    work, before = _launched_before(graph)
    earlier: Ints = work[before == NONE]
    return earlier


@dataclass(frozen=True)
class _Layout:
    """The nodes of a graph by step, resource and time."""

    graph: ExecutionGraph
    step_of: Ints
    """Per node."""
    node: Ints
    """Those that are part of a step, in that order."""
    place: Ints
    """Per node of the graph, where it stands in `node`."""
    group: Ints
    """Per place: step times resources plus resource."""
    position: Ints
    """Per node, in the order of the graph."""
    lag_us: Floats
    """Per kind of edge."""

    @classmethod
    def of(cls, graph: ExecutionGraph) -> _Layout:
        nodes, edges, count = graph.nodes_, graph.edges_, len(graph)
        step = step_of_nodes(graph)
        node = np.flatnonzero((step != NONE) & (nodes.kind != NodeKind.MARK))
        group = step[node] * len(graph.resources) + nodes.resource[node]
        order = np.lexsort((nodes.end_us[node], nodes.start_us[node], group))
        node, group = node[order], group[order]
        place, position = np.full(count, NONE, np.int64), np.empty(count, np.int64)
        place[node], position[graph.order] = np.arange(len(node)), np.arange(count)
        lag_us = np.zeros(len(EdgeKind))
        lag_us[edges.kind] = edges.lag_us
        return cls(graph, step, node, place, group, position, lag_us)

    def step(self, index: int, ranks: tuple[int, ...]) -> RecordedStep:
        """The step `index` of ranks that go through it together."""
        graph, edges = self.graph, self.graph.edges_
        own = self.step_of == index
        if len(ranks) < len(distinct(graph.marks.rank)):
            own &= np.isin(graph.nodes_.rank, ranks)
        rows = np.flatnonzero(own)
        rows = rows[np.argsort(self.position[rows], kind="stable")]
        local = np.full(len(graph), NONE, np.int64)
        local[rows] = np.arange(len(rows))
        into = np.flatnonzero(local[edges.target] != NONE)
        within = into[local[edges.source[into]] != NONE]
        parts = [(edges.where(_mask(within, len(edges))), np.zeros(len(within), np.int64))]
        parts += [self._across(into, index), self._along(index, ranks), self._queue(rows)]
        every = parts[0][0].and_(*(more for more, _ in parts[1:]))
        distance = np.concatenate([later for _, later in parts])
        source, target = local[every.source], local[every.target]
        known = (source != NONE) & (target != NONE)
        local_edges = Edges.of(
            source[known],
            target[known],
            every.kind[known],
            overlap_frac=every.overlap_frac[known],
            lag_us=every.lag_us[known],
        )
        return RecordedStep(index, ranks, rows, local_edges, distance[known])

    def _bounds(self, group: Ints) -> tuple[Ints, Ints]:
        """First and past the last place of each group."""
        return (
            np.searchsorted(self.group, group, side="left"),
            np.searchsorted(self.group, group, side="right"),
        )

    def _across(self, into: Ints, index: int) -> tuple[Edges, Ints]:
        """Dependencies on earlier steps, each from the operation of this one that stands as far
        from the end of its thread or stream. Of threads and streams, `_along` is."""
        graph, edges = self.graph, self.graph.edges_
        before = self.step_of[edges.source[into]]
        follows = (EdgeKind.PROGRAM, EdgeKind.STREAM_OVERLAP, *STREAM_KINDS, *LAUNCH_KINDS)
        chosen = (before != NONE) & (before < index) & (self.place[edges.source[into]] != NONE)
        chosen &= ~has_code(edges.kind[into], follows)
        rows, before = into[chosen], before[chosen]
        source = edges.source[rows]
        _, past = self._bounds(self.group[self.place[source]])
        from_end = past - self.place[source]
        first, past = self._bounds(index * len(graph.resources) + graph.nodes_.resource[source])
        here = past - from_end
        there = here >= first
        kept = edges.where(_mask(rows[there], len(edges)))
        moved = Edges(
            self.node[here[there]], kept.target, kept.kind, kept.overlap_frac, kept.lag_us
        )
        return moved, index - before[there]

    def _along(self, index: int, ranks: tuple[int, ...]) -> tuple[Edges, Ints]:
        """From the end of each rank's step to its main thread's first piece, and from the last
        operation of each stream to the first."""
        graph = self.graph
        nodes, marks = graph.nodes_, graph.marks
        source: list[int] = []
        target: list[int] = []
        kind: list[int] = []
        for resource, name in enumerate(graph.resources):
            rank, _, rest = name.partition("/")
            if not rank.isdecimal() or int(rank) not in ranks:
                continue
            first, past = (
                int(at[0]) for at in self._bounds(np.array([self._key(index, resource)]))
            )
            if first == past:
                continue
            if rest == "main":
                own = np.flatnonzero(marks.rank == int(rank))
                source.append(int(marks.end[own[index]]))
                kind.append(int(EdgeKind.PROGRAM))
            elif rest.startswith("gpu"):
                source.append(int(self.node[past - 1]))
                follows = NodeKind(int(nodes.kind[self.node[first]]))
                kind.append(int(_STREAM_OF_KIND.get(follows, EdgeKind.STREAM)))
            else:
                continue
            target.append(int(self.node[first]))
        codes = np.array(kind, np.int64)
        ends = np.array(source, np.int64), np.array(target, np.int64)
        along = Edges.of(*ends, codes, lag_us=self.lag_us[codes])
        return along, np.ones(len(codes), np.int64)

    def _key(self, index: int, resource: int) -> int:
        return index * len(self.graph.resources) + resource

    def _queue(self, rows: Ints) -> tuple[Edges, Ints]:
        """A host is ahead of its device by no more launches than its queue holds."""
        graph, nodes = self.graph, self.graph.nodes_
        source, target, distance = [], [], []
        for rank in distinct(nodes.rank[rows]).tolist():
            own = rows[nodes.rank[rows] == rank]
            calls, work = own[nodes.kind[own] == NodeKind.LAUNCH], own[graph.on_device[own]]
            if len(calls) and len(work):
                last = work[np.argmax(nodes.end_us[work])]
                source.append(int(last))
                target.append(int(calls[np.argmax(nodes.start_us[calls])]))
                distance.append(-(-self.queue_depth(rank) // len(calls)))
        ends = np.array(source, np.int64), np.array(target, np.int64)
        lag_us = self.lag_us[EdgeKind.LAUNCH_QUEUE]
        return Edges.of(*ends, EdgeKind.LAUNCH_QUEUE, lag_us=lag_us), np.array(distance, np.int64)

    def queue_depth(self, rank: int) -> int:
        """How many launches lie between those that waited for the queue and what they waited for;
        as usual where none did."""
        nodes, edges = self.graph.nodes_, self.graph.edges_
        queued = np.flatnonzero(edges.kind == EdgeKind.LAUNCH_QUEUE)
        queued = queued[nodes.rank[edges.target[queued]] == rank]
        if not len(queued):
            return QUEUE_DEPTH
        call = np.full(len(nodes), NONE, np.int64)
        launches = has_code(edges.kind, LAUNCH_KINDS)
        call[edges.target[launches]] = edges.source[launches]
        calls = np.sort(nodes.start_us[distinct(edges.source[launches])])
        ends = (edges.target[queued], call[edges.source[queued]])
        later, earlier = (np.searchsorted(calls, nodes.start_us[end]) for end in ends)
        return max(int(np.median(later - earlier)), 1)


def _mask(rows: Ints, count: int) -> Mask:
    chosen = np.zeros(count, np.bool_)
    chosen[rows] = True
    return chosen
