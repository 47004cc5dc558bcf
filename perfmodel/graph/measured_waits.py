"""Lags of edges, and the waits that no dependency explains, kept with their measured length.

A node that started later than every edge into it allows waited for something that the recording
does not show. Dropping that time would predict a step that never was; so a node of kind `wait` and
the measured length stands before it, in the scope `unexplained`, which no other what-if scales.
One reason can be told from the recording alone: operations of a graph launch that the profiler left
out. What waits for work from before the window has no launch call in the file (`graph.build`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from perfmodel.arrays import Floats, Ints, Mask, distinct, has_code, median
from perfmodel.graph.kinds import (
    LAUNCH_KINDS,
    NOT_EXPLAINED,
    STREAM_KINDS,
    Cause,
    EdgeKind,
    NodeKind,
    Scope,
)
from perfmodel.graph.types import Edges, ExecutionGraph
from perfmodel.trace.categories import GRAPH_LAUNCH_CALL
from perfmodel.trace.columns import NONE

NO_LAG = (
    EdgeKind.PROGRAM,
    EdgeKind.HAND_OVER,
    EdgeKind.HAND_BACK,
    EdgeKind.ALLOCATOR,
    EdgeKind.DATA,
    EdgeKind.RENDEZVOUS,
    EdgeKind.STREAM_OVERLAP,
)
PLAUSIBLE_LAG_US = dict.fromkeys(EdgeKind, (-20.0, 200.0)) | {
    **dict.fromkeys(LAUNCH_KINDS, (-100.0, 100.0)),
    **dict.fromkeys(STREAM_KINDS, (-3.0, 20.0)),
    EdgeKind.SM_OCCUPANCY: (-200.0, 20.0),
    EdgeKind.HOST_COLLECTIVE: (0.0, 2000.0),
}
"""What can be the doing of an edge of each kind; later starts have a reason that is not seen."""
MEAN_LAG_KINDS = STREAM_KINDS
"""Gaps that add up over thousands of operations: their mean keeps the sum, a median would not."""
_ROUNDS = 4
_TOLERANCE_US = 1e-6


def with_constant_lags(start_us: Floats, duration_us: Floats, edges: Edges) -> Edges:
    """`edges` with the lag of each kind: the median (of gaps within a stream, the mean), over the
    decisive edges of that kind, of the time from when the source set its target free until the
    target started.

    An edge is decisive when no other edge into its target asks for a later start; which ones are
    depends on the lags, so the two are found in turn. A kind that never decided has lag 0.
    """
    decided = np.zeros(len(start_us), bool)
    decided[edges.target[~has_code(edges.kind, NO_LAG)]] = True
    rows = np.flatnonzero(decided.take(edges.target))
    target, kind = edges.target[rows].astype(np.int64), edges.kind[rows].astype(np.int64)
    free = replace(edges, lag_us=np.zeros(len(edges))).ready_us(start_us, duration_us)[rows]
    gap = start_us[target] - free
    bounds = np.array([PLAUSIBLE_LAG_US[EdgeKind(k)] for k in range(len(EdgeKind))])
    fixed = has_code(kind, NO_LAG) | (gap < bounds[kind, 0]) | (gap > bounds[kind, 1])
    lag = np.zeros(len(EdgeKind))
    for _ in range(_ROUNDS):
        before = lag.copy()
        ready_us, latest_us = free + lag[kind], np.full(len(start_us), -np.inf)
        np.maximum.at(latest_us, target, ready_us)
        decisive = (ready_us >= latest_us[target] - _TOLERANCE_US) & ~fixed
        for code in distinct(kind[decisive]):
            typical = np.mean if code in MEAN_LAG_KINDS else median
            lag[code] = typical(gap[decisive & (kind == code)])
        if np.array_equal(lag, before):
            break
    return replace(edges, lag_us=lag[edges.kind])


MIN_REPEATS = 3
REPEATED_SPREAD = 0.05
REPEATED_FACTOR = 0.25
"""Waits at one place of the launches of a graph that differ by less (half of them by the first
share of their median, each by the second) are work: operations that were not recorded. Waits for
something else differ from step to step."""
ROUNDING_US = 1e-3
CAUSE_ON_THREAD = {
    NodeKind.SYNC: Cause.BLOCKING_CALL,
    NodeKind.WAIT: Cause.BLOCKING_CALL,
    NodeKind.ALLOCATOR: Cause.ALLOCATOR,
    NodeKind.LAUNCH: Cause.LAUNCH_QUEUE_FULL,
}
"""What a host node waited for where nothing that was recorded held it back."""


class _LateNodes(NamedTuple):
    """Nodes that started later than their edges allow."""

    node: Ints
    source: Ints
    """The predecessor that set it free last."""
    kind: Ints
    """`EdgeKind` of the edge from there."""
    wait_us: Floats

    def where(self, chosen: Mask) -> _LateNodes:
        columns: list[Any] = [column[chosen] for column in self]
        return _LateNodes(*columns)


def with_measured_waits(graph: ExecutionGraph) -> ExecutionGraph:
    """`graph` (of one rank, as measured) in which each unexplained wait is a node of its own."""
    late = _late_nodes(graph)
    nodes, edges = graph.nodes_, graph.edges_
    if not len(late.node):
        return graph
    cause = np.full(len(late.node), int(graph.unknown))
    for kind, known in CAUSE_ON_THREAD.items():
        cause[(late.kind == EdgeKind.PROGRAM) & (nodes.kind[late.node] == kind)] = known
    cause[_repeated_in_graph_launches(graph, late)] = Cause.RECORDING_MISSING
    count = len(late.node)
    waits = len(graph) + np.arange(count)
    grown = graph.nodes_.with_more(
        count,
        kind=NodeKind.WAIT,
        cause=cause,
        scope=np.where(np.isin(cause, NOT_EXPLAINED), Scope.UNEXPLAINED, Scope.NONE),
        rank=nodes.rank[late.node],
        resource=nodes.resource[late.node],
        row=NONE,
        start_us=nodes.start_us[late.node] - late.wait_us,
        duration_us=late.wait_us,
        release_us=nodes.release_us[late.node],
    )
    wait_of = np.full(len(graph), NONE, np.int64)
    wait_of[late.node] = waits
    before = edges.where(wait_of[edges.target] != NONE)
    before = replace(before, target=wait_of[before.target].astype(np.int32))
    return replace(
        graph,
        nodes_=grown,
        edges_=edges.and_(before, Edges.of(waits, late.node, EdgeKind.PROGRAM)),
        labels=(*graph.labels, *(f"wait before {graph.labels[n]}" for n in late.node.tolist())),
        annotations=(*graph.annotations, *(graph.annotations[n] for n in late.node.tolist())),
    )


def _late_nodes(graph: ExecutionGraph) -> _LateNodes:
    """Nodes whose last predecessor explains less than the wait before them.

    A lag beyond what is plausible for its kind of edge is a wait for something else; on a thread,
    whose pieces leave no hole, every one is.
    """
    nodes, edges = graph.nodes_, graph.edges_
    ready = edges.ready_us(nodes.start_us, nodes.duration_us)
    last = edges.latest(ready)
    node, kind = edges.target[last], edges.kind[last]
    wait_us = nodes.start_us[node] - np.maximum(ready[last], nodes.release_us[node])
    limit_us = np.array([PLAUSIBLE_LAG_US[each][1] for each in EdgeKind])
    limit_us[EdgeKind.PROGRAM] = ROUNDING_US
    gap_us = nodes.start_us[node] - ready[last] + edges.lag_us[last]
    chosen = (wait_us > ROUNDING_US) & (gap_us > limit_us[kind])
    return _LateNodes(node, edges.source[last], kind, wait_us).where(chosen)


def _repeated_in_graph_launches(graph: ExecutionGraph, late: _LateNodes) -> Mask:
    """Which waits come back, equally long, at one place of the launches of a graph.

    Launches of one graph are those of the same operations, in all steps or at one place of a step.
    """
    result = np.zeros(len(late.node), bool)
    places = _graph_launch_places(graph, late)
    for depth in (1, 2):
        groups: dict[tuple[object, ...], list[int]] = {}
        for at, place in enumerate(places):
            if place and not result[at]:
                groups.setdefault(place[:depth], []).append(at)
        for members in groups.values():
            result[members] = _is_work(late.wait_us[members])
    return result


def _is_work(wait_us: Floats) -> Mask:
    """Which of the waits at one place are as long as most of them are."""
    middle_us = median(wait_us)
    off = np.abs(wait_us - middle_us) / middle_us
    if len(wait_us) < MIN_REPEATS or median(off) > REPEATED_SPREAD:
        return np.zeros(len(wait_us), bool)
    return np.asarray(off <= REPEATED_FACTOR)


def _graph_launch_places(graph: ExecutionGraph, late: _LateNodes) -> list[tuple[object, ...]]:
    """Per late node: its place in the launches of its graph, and which of the step's launches of
    that graph it is; empty where neither it nor the operation before it is of a graph launch."""
    nodes, edges = graph.nodes_, graph.edges_
    launches = np.flatnonzero(has_code(edges.kind, LAUNCH_KINDS))
    calls = distinct(edges.source[launches])
    labels = [graph.labels[call] for call in calls.tolist()]
    is_graph = {label: bool(GRAPH_LAUNCH_CALL.match(label)) for label in set(labels)}
    calls = calls[np.array([is_graph[label] for label in labels], bool)]
    launches = launches[np.isin(edges.source[launches], calls)]
    launch = np.full(len(graph), NONE, np.int64)
    launch[edges.target[launches]] = edges.source[launches]
    pieces = edges.target[launches]
    pieces = pieces[np.lexsort((nodes.start_us[pieces], launch[pieces]))]
    of_launch: dict[int, list[int]] = {}
    for piece in pieces.tolist():
        of_launch.setdefault(int(launch[piece]), []).append(piece)
    names = {call: tuple(graph.labels[p] for p in own) for call, own in of_launch.items()}
    place = {piece: at for own in of_launch.values() for at, piece in enumerate(own)}
    begun_us = np.sort(nodes.start_us[graph.marks.start])
    count: dict[tuple[object, ...], int] = {}
    nth: dict[int, int] = {}
    for call in sorted(of_launch, key=lambda node: float(nodes.start_us[node])):
        key = (names[call], int(np.searchsorted(begun_us, nodes.start_us[call], side="right")))
        nth[call] = count[key] = count.get(key, -1) + 1
    result: list[tuple[object, ...]] = []
    for node, source in zip(late.node.tolist(), late.source.tolist(), strict=True):
        both = [int(launch[each]) for each in (source, node)]
        if max(both) == NONE or not graph.on_device[source]:
            result.append(())
            continue
        ends = zip(both, (source, node), strict=True)
        where = tuple((names.get(call), place.get(n)) for call, n in ends)
        named = (graph.labels[source], graph.labels[node])
        result.append(((where, named), tuple(nth.get(call) for call in both)))
    return result
