"""Recorded steps as steps that repeat: each by itself, with what it carries to the one after it.

An operation belongs to the step that launched it, however late it runs. What a step waits for of
steps before it is carried: from the end of the host's step to the beginning of the next, from the
last operation of each stream to the first, and along the dependencies that were found across the
step's start, each from the operation as far from the end of its thread or stream.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from perfmodel.base.arrays import Floats, Ints, distinct, has_code
from perfmodel.timeline.graph.kinds import LAUNCH_KINDS, STREAM_KINDS, EdgeKind, NodeKind
from perfmodel.timeline.graph.types import Edges, ExecutionGraph
from perfmodel.trace.columns import NONE

QUEUE_DEPTH = 1024
"""Launches that a host may be ahead of its device. Source: the
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
    nodes, edges, marks = graph.nodes_, graph.edges_, graph.marks
    ranks = distinct(marks.rank)
    together, count = graph.arrivals is not None, len(marks.name) // len(ranks)
    step = step_of_nodes(graph)
    # A unit is a step of a rank, or of ranks that go through it together.
    first = 0 if together else np.searchsorted(ranks, nodes.rank) * count
    unit = np.where(step != NONE, first + step, NONE)
    within = edges.where(unit[edges.source] == unit[edges.target])
    across, later = _across(graph, step, unit)
    along = _along(graph, step, unit)
    queue, ahead = _queue(graph, unit)
    every = within.and_(across, along, queue)
    once = np.zeros(len(within), np.int64), later, np.ones(len(along), np.int64), ahead
    distance = np.concatenate(once)
    known = (unit[every.source] == unit[every.target]) & (unit[every.target] != NONE)
    chosen = np.flatnonzero(known)
    chosen = chosen[np.argsort(unit[every.target[chosen]], kind="stable")]
    every, distance = every.where(chosen), distance[chosen]
    # The nodes of every unit, in an order in which edges go forward, and their places there.
    rows = graph.order[unit[graph.order] != NONE]
    rows = rows[np.argsort(unit[rows], kind="stable")]
    units = np.arange(unit.max(initial=0) + 2)
    begins = np.searchsorted(unit[rows], units)
    place = np.full(len(graph), NONE, np.int64)
    place[rows] = np.arange(len(rows)) - begins[unit[rows]]
    of_edges = np.searchsorted(unit[every.target], units)
    every = replace(every, source=place[every.source], target=place[every.target])
    groups = [tuple(ranks.tolist())] if together else [(rank,) for rank in ranks.tolist()]
    result = []
    for number, group in enumerate(groups):
        for index in steps.tolist():
            at = number * count + index
            own, part = slice(*begins[at : at + 2]), slice(*of_edges[at : at + 2])
            result.append(RecordedStep(index, group, rows[own], every.where(part), distance[part]))
    return result


def _across(graph: ExecutionGraph, step: Ints, unit: Ints) -> tuple[Edges, Ints]:
    """Dependencies on earlier steps, each from the operation of this one that stands as far from
    the end of its thread or stream, and over how many steps. Of threads and streams, `_along` is.
    """
    nodes, edges = graph.nodes_, graph.edges_
    node, group = _lanes(graph, unit)
    place = np.full(len(graph), NONE, np.int64)
    place[node] = np.arange(len(node))
    before, index = step[edges.source], step[edges.target]
    chosen = (before != NONE) & (before < index) & (place[edges.source] != NONE)
    kept = edges.where(chosen & ~has_code(edges.kind, _FOLLOWS))
    of_source = place[kept.source]
    from_end = np.searchsorted(group, group[of_source], side="right") - of_source
    here = unit[kept.target] * len(graph.resources) + nodes.resource[kept.source]
    at = np.searchsorted(group, here, side="right") - from_end
    there = at >= np.searchsorted(group, here, side="left")
    kept, at = kept.where(there), at[there]
    return replace(kept, source=node[at]), step[kept.target] - step[kept.source]


def _lanes(graph: ExecutionGraph, unit: Ints) -> tuple[Ints, Ints]:
    """What runs in a unit by group (unit and resource), then time; and the group of each."""
    nodes = graph.nodes_
    node = np.flatnonzero((unit != NONE) & (nodes.kind != NodeKind.MARK))
    group = unit[node] * len(graph.resources) + nodes.resource[node]
    order = np.lexsort((nodes.end_us[node], nodes.start_us[node], group))
    return node[order], group[order]


def _along(graph: ExecutionGraph, step: Ints, unit: Ints) -> Edges:
    """From the end of each rank's step to its main thread's first piece, and from the last
    operation of each stream to the first."""
    nodes, marks = graph.nodes_, graph.marks
    node, group = _lanes(graph, unit)
    begins = np.flatnonzero(np.diff(group, prepend=NONE))
    ends = np.append(begins[1:], len(group)) - 1
    names = [name.partition("/")[2] for name in graph.resources]
    goes_on = np.array([name == "main" or name.startswith("gpu") for name in names], np.bool_)
    is_main = np.array([name == "main" for name in names], np.bool_)
    kept = np.flatnonzero(goes_on[nodes.resource[node[begins]]])
    target, source = node[begins[kept]], node[ends[kept]]
    mark_end = _by_host(graph)[marks.end[np.argsort(marks.rank, kind="stable")]]
    ranks = distinct(marks.rank)
    own = np.searchsorted(ranks, nodes.rank[target]) * (len(mark_end) // len(ranks)) + step[target]
    of_main = is_main[nodes.resource[target]]
    source = np.where(of_main, mark_end[own], source)
    kind = np.where(of_main, int(EdgeKind.PROGRAM), _STREAM_OF_KIND[nodes.kind[target]])
    return Edges.of(source, target, kind, lag_us=_lags_us(graph)[kind])


def _queue(graph: ExecutionGraph, unit: Ints) -> tuple[Edges, Ints]:
    """A host is ahead of its device by no more launches than its queue holds, and how many steps
    that is."""
    nodes, ranks = graph.nodes_, distinct(graph.marks.rank)
    own = np.searchsorted(ranks, nodes.rank) + unit * len(ranks)  # a unit's part of a rank
    work, calls = (
        np.flatnonzero(each & (unit != NONE))
        for each in (graph.on_device, nodes.kind == NodeKind.LAUNCH)
    )
    work = work[np.argsort(nodes.end_us[work], kind="stable")]
    calls = calls[np.argsort(nodes.start_us[calls], kind="stable")]
    last_work, last_call = (
        dict(zip(own[rows].tolist(), rows.tolist(), strict=True)) for rows in (work, calls)
    )
    found = [
        (last_work[part], last_call[part], -(-QUEUE_DEPTH // count))
        for part, count in Counter(own[calls].tolist()).items()
        if part in last_work
    ]
    source, target, distance = np.array(found, np.int64).reshape(-1, 3).T
    kind = EdgeKind.LAUNCH_QUEUE
    return Edges.of(source, target, kind, lag_us=_lags_us(graph)[kind]), distance


def _lags_us(graph: ExecutionGraph) -> Floats:
    lag_us = np.zeros(len(EdgeKind))
    lag_us[graph.edges_.kind] = graph.edges_.lag_us
    return lag_us


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
    step, reached_us = np.full(len(graph), NONE, np.int64), nodes.end_us[_by_host(graph)]
    for rank in distinct(marks.rank).tolist():
        own = np.flatnonzero(marks.rank == rank)
        rows = np.flatnonzero((nodes.rank == rank) & (nodes.kind != NodeKind.MARK))
        begun, over = reached_us[marks.start[own]], reached_us[marks.end[own]]
        at = np.searchsorted(begun, nodes.start_us[rows], side="right") - 1
        step[rows] = np.where(nodes.start_us[rows] < over[at], at, NONE)
        step[marks.end[own]] = np.arange(len(own))
    last = (step[edges.target] != NONE) & (nodes.kind[edges.target] == NodeKind.MARK)
    step[edges.source[last]] = step[edges.target[last]]
    # Launch calls, and what each starts: of a wait before an operation also that.
    launches, call = has_code(edges.kind, LAUNCH_KINDS), np.full(len(graph), NONE)
    call[edges.target[launches]] = edges.source[launches]
    waits = (nodes.kind[edges.source] == NodeKind.WAIT) & (edges.kind == EdgeKind.PROGRAM)
    waits &= graph.on_device[edges.target]
    behind = waits & (call[edges.source] != NONE)
    call[edges.target[behind]] = call[edges.source[behind]]
    has_call = call != NONE
    step[has_call] = step[call[has_call]]
    # Work without a launch call, on streams where other work has one: with the last of that before.
    work = np.flatnonzero(graph.on_device)
    work = work[np.isin(nodes.resource[work], nodes.resource[work[has_call[work]]])]
    work = work[np.lexsort((nodes.start_us[work], nodes.resource[work]))]
    first = np.searchsorted(nodes.resource[work], nodes.resource[work], side="left")
    before = np.maximum.accumulate(np.where(has_call[work], np.arange(len(work)), NONE))
    known = before >= first
    step[work[known]] = step[work[before[known]]]
    if len(marks.name) > len(distinct(marks.rank)):
        step[work[~known]] = NONE
    if graph.arrivals is not None:
        step[graph.arrivals[:, 0]] = step[graph.arrivals[:, 1]]
        meets = (edges.kind == EdgeKind.RENDEZVOUS) & (nodes.kind[edges.target] == NodeKind.MARK)
        step[edges.target[meets]] = NONE
        np.maximum.at(step, edges.target[meets], step[edges.source[meets]])
    step[edges.source[waits]] = step[edges.target[waits]]  # as what waits
    return step


def _by_host(graph: ExecutionGraph) -> Ints:
    """Per node itself; of a mark that ends a step where it begins the next, as in graphs that are
    built, the host's last piece before it: the mark waits for the device, the host does not."""
    edges, marks, by_host = graph.edges_, graph.marks, np.arange(len(graph))
    if np.isin(marks.end, marks.start).any():
        last = (edges.kind == EdgeKind.PROGRAM) & np.isin(edges.target, marks.end)
        by_host[edges.target[last]] = edges.source[last]
    return by_host
