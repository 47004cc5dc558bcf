"""One constant lag per kind of edge, from the edges that decided a start when measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfmodel.graph.kinds import STREAM_KINDS, EdgeKind
from perfmodel.graph.types import Edges
from perfmodel.trace.columns import Floats, Ints, Mask

NO_LAG = (
    EdgeKind.PROGRAM,
    EdgeKind.HAND_OVER,
    EdgeKind.HAND_BACK,
    EdgeKind.ALLOCATOR,
    EdgeKind.DATA,
    EdgeKind.RENDEZVOUS,
    EdgeKind.STREAM_OVERLAP,
)
PLAUSIBLE_US = dict.fromkeys(EdgeKind, (-20.0, 200.0)) | {
    EdgeKind.LAUNCH: (-100.0, 100.0),
    EdgeKind.LAUNCH_COPY: (-100.0, 100.0),
    EdgeKind.LAUNCH_COLLECTIVE: (-100.0, 100.0),
    EdgeKind.STREAM: (-3.0, 20.0),
    EdgeKind.STREAM_COPY: (-3.0, 20.0),
    EdgeKind.STREAM_COLLECTIVE: (-3.0, 20.0),
    EdgeKind.STREAM_GRAPH: (-3.0, 20.0),
    EdgeKind.SM_OCCUPANCY: (-200.0, 20.0),
    EdgeKind.HOST_COLLECTIVE: (0.0, 2000.0),
}
"""What can be the doing of an edge of each kind; later starts have a reason that is not seen."""
SUMMED = STREAM_KINDS
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
    decided[edges.target[~np.isin(edges.kind, NO_LAG)]] = True
    rows = np.flatnonzero(decided[edges.target])
    target, kind = edges.target[rows], edges.kind[rows]
    free = replace(edges, lag_us=np.zeros(len(edges))).ready_us(start_us, duration_us)[rows]
    gap = start_us[target] - free
    bounds = np.array([PLAUSIBLE_US[EdgeKind(k)] for k in range(len(EdgeKind))])
    fixed = np.isin(kind, NO_LAG) | (gap < bounds[kind, 0]) | (gap > bounds[kind, 1])
    lag = np.zeros(len(EdgeKind))
    for _ in range(_ROUNDS):
        before = lag.copy()
        decisive = latest(free + lag[kind], target, len(start_us)) & ~fixed
        for code in np.unique(kind[decisive]):
            typical = np.mean if code in SUMMED else np.median
            lag[code] = typical(gap[decisive & (kind == code)])
        if np.array_equal(lag, before):
            break
    return replace(edges, lag_us=lag[edges.kind])


def latest(ready_us: Floats, target: Ints, count: int) -> Mask:
    """Which edges ask for the latest start of their target."""
    bound = np.full(count, -np.inf)
    np.maximum.at(bound, target, ready_us)
    return ready_us >= bound[target] - _TOLERANCE_US
