"""Lags of edges, and the waits that no dependency explains, kept with their measured length.

A node that started later than every edge into it allows waited for something that the recording
does not show. Dropping that time would predict a step that never was; so a node of kind `wait` and
the measured length stands before it, in the scope `unexplained`, which no other what-if scales.
What waits for work from before the window has no launch call in the file (`graph.build`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfmodel.base.arrays import Floats, distinct, has_code, median
from perfmodel.timeline.graph.kinds import (
    LAUNCH_KINDS,
    NOT_EXPLAINED,
    STREAM_KINDS,
    Cause,
    EdgeKind,
    NodeKind,
    Scope,
)
from perfmodel.timeline.graph.types import Edges, ExecutionGraph
from perfmodel.trace.columns import NONE

NO_LAG = (
    EdgeKind.PROGRAM,
    EdgeKind.HAND_OVER,
    EdgeKind.HAND_BACK,
    EdgeKind.ALLOCATOR,
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


ROUNDING_US = 1e-3
CAUSE_ON_THREAD = {
    NodeKind.SYNC: Cause.BLOCKING_CALL,
    NodeKind.WAIT: Cause.BLOCKING_CALL,
    NodeKind.ALLOCATOR: Cause.ALLOCATOR,
    NodeKind.LAUNCH: Cause.LAUNCH_QUEUE_FULL,
}
"""What a host node waited for where nothing that was recorded held it back."""


def with_measured_waits(graph: ExecutionGraph) -> ExecutionGraph:
    """`graph` (of one rank, as measured) in which each unexplained wait is a node of its own.

    A wait is unexplained where the last predecessor explains less than it took: a lag beyond what
    is plausible for its kind of edge; on a thread, whose pieces leave no hole, any.
    """
    nodes, edges = graph.nodes_, graph.edges_
    ready = edges.ready_us(nodes.start_us, nodes.duration_us)
    last = edges.latest(ready)
    late, kind = edges.target[last], edges.kind[last]
    wait_us = nodes.start_us[late] - np.maximum(ready[last], nodes.release_us[late])
    limit_us = np.array([PLAUSIBLE_LAG_US[each][1] for each in EdgeKind])
    limit_us[EdgeKind.PROGRAM] = ROUNDING_US
    gap_us = nodes.start_us[late] - ready[last] + edges.lag_us[last]
    chosen = (wait_us > ROUNDING_US) & (gap_us > limit_us[kind])
    late, kind, wait_us = late[chosen], kind[chosen], wait_us[chosen]
    if not len(late):
        return graph
    cause = np.full(len(late), int(graph.unknown))
    for node_kind, known in CAUSE_ON_THREAD.items():
        cause[(kind == EdgeKind.PROGRAM) & (nodes.kind[late] == node_kind)] = known
    waits = len(graph) + np.arange(len(late))
    grown = nodes.with_more(
        len(late),
        kind=NodeKind.WAIT,
        cause=cause,
        scope=np.where(np.isin(cause, NOT_EXPLAINED), Scope.UNEXPLAINED, Scope.NONE),
        rank=nodes.rank[late],
        resource=nodes.resource[late],
        start_us=nodes.start_us[late] - wait_us,
        duration_us=wait_us,
        release_us=nodes.release_us[late],
    )
    wait_of = np.full(len(graph), NONE, np.int64)
    wait_of[late] = waits
    before = edges.where(wait_of[edges.target] != NONE)
    before = replace(before, target=wait_of[before.target].astype(np.int32))
    return replace(
        graph,
        nodes_=grown,
        edges_=edges.and_(before, Edges.of(waits, late, EdgeKind.PROGRAM)),
        labels=(*graph.labels, *(f"wait before {graph.labels[n]}" for n in late.tolist())),
        annotations=(*graph.annotations, *(graph.annotations[n] for n in late.tolist())),
    )
