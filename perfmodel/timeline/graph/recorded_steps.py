"""Recorded steps as steps that repeat: each by itself, with what it carries to the one after it.

An operation belongs to the step that launched it, however late it runs. What a step waits for of
steps before it is carried: from the end of the host's step to the beginning of the next, from the
last operation of each stream to the first, and along the dependencies that were found across the
step's start, each from the operation as far from the end of its thread or stream.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from perfmodel.base.arrays import Ints, distinct, has_code
from perfmodel.timeline.graph.kinds import LAUNCH_KINDS, STREAM_KINDS, EdgeKind, NodeKind
from perfmodel.timeline.graph.types import Edges, ExecutionGraph
from perfmodel.trace.columns import NONE

QUEUE_DEPTH = 1024
"""Launches that a host may be ahead of its device, where the file shows no other depth. Source: the
depth at which launch calls of CUDA begin to wait in traces of V100 and A100."""
_STREAM_OF_KIND = np.full(len(NodeKind), int(EdgeKind.STREAM))
_STREAM_OF_KIND[NodeKind.COPY] = EdgeKind.STREAM_COPY
_STREAM_OF_KIND[NodeKind.COLLECTIVE] = EdgeKind.STREAM_COLLECTIVE
_FOLLOWS = (EdgeKind.PROGRAM, EdgeKind.STREAM_OVERLAP, *STREAM_KINDS, *LAUNCH_KINDS)


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
    layout = _Layout(graph, together=len(groups) == 1)
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


class _Layout:
    """Nodes and edges of a graph by unit: a step of a rank, or of ranks that go through it
    together. Each is laid out once, so that a step costs what it holds."""

    def __init__(self, graph: ExecutionGraph, *, together: bool) -> None:
        nodes, edges, marks, count = graph.nodes_, graph.edges_, graph.marks, len(graph)
        self.graph, self.together = graph, together
        self.step_of = step_of_nodes(graph)
        self.ranks = distinct(marks.rank)
        self.step_count = len(marks.name) // len(self.ranks)
        first = 0 if together else np.searchsorted(self.ranks, nodes.rank) * self.step_count
        is_part = self.step_of != NONE
        self.unit = np.where(is_part, first + self.step_of, NONE)
        # The nodes of every unit, in an order in which edges go forward, and their places there.
        position, self.local = np.empty(count, np.int64), np.full(count, NONE, np.int64)
        position[graph.order] = np.arange(count)
        rows = np.flatnonzero(is_part)
        self.rows = rows[np.lexsort((position[rows], self.unit[rows]))]
        self.row_units = self.unit[self.rows]
        begins = np.searchsorted(self.row_units, self.row_units, side="left")
        self.local[self.rows] = np.arange(len(rows)) - begins
        # Edges by the unit of their target.
        self.into = np.argsort(self.unit[edges.target], kind="stable")
        self.into_units = self.unit[edges.target[self.into]]
        # What runs in a step by group (unit and resource), then time, and each node's place there.
        node = np.flatnonzero(is_part & (nodes.kind != NodeKind.MARK))
        group = self.unit[node] * len(graph.resources) + nodes.resource[node]
        order = np.lexsort((nodes.end_us[node], nodes.start_us[node], group))
        self.node, self.group = node[order], group[order]
        self.place = np.full(count, NONE, np.int64)
        self.place[self.node] = np.arange(len(node))
        by_rank = np.argsort(marks.rank, kind="stable")
        self.mark_end = marks.end[by_rank].reshape(len(self.ranks), self.step_count)
        self.rank_of = np.array([_rank_of(name) for name in graph.resources], np.int64)
        self.is_main = np.array([name.endswith("/main") for name in graph.resources], np.bool_)
        self.queue_depth = _queue_depths(graph, self.ranks)
        self.lag_us = np.zeros(len(EdgeKind))
        self.lag_us[edges.kind] = edges.lag_us

    def step(self, index: int, ranks: tuple[int, ...]) -> RecordedStep:
        """The step `index` of ranks that go through it together."""
        edges = self.graph.edges_
        rank_at = 0 if self.together else int(np.searchsorted(self.ranks, ranks[0]))
        unit = rank_at * self.step_count + index
        rows, into = (
            of[slice(*np.searchsorted(units, np.array([unit, unit + 1], units.dtype)))]
            for of, units in ((self.rows, self.row_units), (self.into, self.into_units))
        )
        within = into[self.unit[edges.source[into]] == unit]
        parts = [(edges.where(within), np.zeros(len(within), np.int64))]
        parts += [self._across(into, index, unit), self._along(index, unit), self._queue(rows)]
        every = parts[0][0].and_(*(more for more, _ in parts[1:]))
        distance = np.concatenate([later for _, later in parts])
        known = (self.unit[every.source] == unit) & (self.unit[every.target] == unit)
        every = every.where(known)
        source, target = self.local[every.source], self.local[every.target]
        local_edges = replace(every, source=source, target=target)
        return RecordedStep(index, ranks, rows, local_edges, distance[known])

    def _bounds(self, group: Ints) -> tuple[Ints, Ints]:
        """First and past the last place of each group."""
        return (
            np.searchsorted(self.group, group, side="left"),
            np.searchsorted(self.group, group, side="right"),
        )

    def _across(self, into: Ints, index: int, unit: int) -> tuple[Edges, Ints]:
        """Dependencies on earlier steps, each from the operation of this one that stands as far
        from the end of its thread or stream. Of threads and streams, `_along` is."""
        graph, edges = self.graph, self.graph.edges_
        before = self.step_of[edges.source[into]]
        chosen = (before != NONE) & (before < index) & (self.place[edges.source[into]] != NONE)
        chosen &= ~has_code(edges.kind[into], _FOLLOWS)
        rows, before = into[chosen], before[chosen]
        source = edges.source[rows]
        _, past = self._bounds(self.group[self.place[source]])
        from_end = past - self.place[source]
        first, past = self._bounds(unit * len(graph.resources) + graph.nodes_.resource[source])
        here = past - from_end
        there = here >= first
        kept = edges.where(rows[there])
        return replace(kept, source=self.node[here[there]]), index - before[there]

    def _along(self, index: int, unit: int) -> tuple[Edges, Ints]:
        """From the end of each rank's step to its main thread's first piece, and from the last
        operation of each stream to the first."""
        graph, count = self.graph, len(self.graph.resources)
        low, high = np.searchsorted(self.group, [unit * count, (unit + 1) * count])
        resource = distinct(self.group[low:high]) - unit * count
        resource = resource[self.rank_of[resource] != NONE]
        first, past = self._bounds(resource + unit * count)
        target, is_main = self.node[first], self.is_main[resource]
        rank = np.searchsorted(self.ranks, self.rank_of[resource])
        source = np.where(is_main, self.mark_end[rank, index], self.node[past - 1])
        kind = np.where(is_main, int(EdgeKind.PROGRAM), _STREAM_OF_KIND[graph.nodes_.kind[target]])
        along = Edges.of(source, target, kind, lag_us=self.lag_us[kind])
        return along, np.ones(len(kind), np.int64)

    def _queue(self, rows: Ints) -> tuple[Edges, Ints]:
        """A host is ahead of its device by no more launches than its queue holds."""
        graph, nodes = self.graph, self.graph.nodes_
        found = []
        for rank in distinct(nodes.rank[rows]).tolist():
            own = rows[nodes.rank[rows] == rank]
            calls, work = own[nodes.kind[own] == NodeKind.LAUNCH], own[graph.on_device[own]]
            if len(calls) and len(work):
                last = work[np.argmax(nodes.end_us[work])]
                call = calls[np.argmax(nodes.start_us[calls])]
                found.append((last, call, -(-self.queue_depth[rank] // len(calls))))
        source, target, distance = np.array(found, np.int64).reshape(-1, 3).T
        kind = EdgeKind.LAUNCH_QUEUE
        return Edges.of(source, target, kind, lag_us=self.lag_us[kind]), distance


def _rank_of(resource: str) -> int:
    """The rank of a main thread or a stream, which go on from step to step; else -1."""
    rank, _, rest = resource.partition("/")
    goes_on = rest == "main" or rest.startswith("gpu")
    return int(rank) if goes_on and rank.isdecimal() else NONE


def _queue_depths(graph: ExecutionGraph, ranks: Ints) -> dict[int, int]:
    """Per rank, how many launches lie between those that waited for the queue and what they waited
    for; as usual where none did."""
    nodes, edges = graph.nodes_, graph.edges_
    depths = dict.fromkeys(ranks.tolist(), QUEUE_DEPTH)
    queued = np.flatnonzero(edges.kind == EdgeKind.LAUNCH_QUEUE)
    if not len(queued):
        return depths
    call = np.full(len(nodes), NONE, np.int64)
    launches = has_code(edges.kind, LAUNCH_KINDS)
    call[edges.target[launches]] = edges.source[launches]
    calls = np.sort(nodes.start_us[distinct(edges.source[launches])])
    ends = (edges.target[queued], call[edges.source[queued]])
    later, earlier = (np.searchsorted(calls, nodes.start_us[end]) for end in ends)
    rank, between = nodes.rank[edges.target[queued]], later - earlier
    return depths | {
        each: max(int(np.median(between[rank == each])), 1) for each in distinct(rank).tolist()
    }
