"""One constant lag per kind of edge, from the edges that decided a start on the measured machine."""

from __future__ import annotations

import numpy as np

from perfmodel.graph.kinds import EdgeKind
from perfmodel.graph.types import Edges
from perfmodel.trace.columns import Floats, Ints, Mask

NO_LAG = (
    EdgeKind.PROGRAM,
    EdgeKind.HAND_OVER,
    EdgeKind.HAND_BACK,
    EdgeKind.ALLOCATOR,
    EdgeKind.DATA,
    EdgeKind.RENDEZVOUS,
)
PLAUSIBLE_US = dict.fromkeys(EdgeKind, (-20.0, 200.0)) | {
    EdgeKind.LAUNCH: (-100.0, 100.0),
    EdgeKind.LAUNCH_COPY: (-100.0, 100.0),
    EdgeKind.LAUNCH_COLLECTIVE: (-100.0, 100.0),
    EdgeKind.STREAM: (-3.0, 20.0),
    EdgeKind.STREAM_COPY: (-3.0, 20.0),
    EdgeKind.STREAM_COLLECTIVE: (-3.0, 20.0),
    EdgeKind.SM_OCCUPANCY: (-200.0, 20.0),
}
"""What can be the doing of an edge of each kind; later starts have a reason that is not seen."""
_ROUNDS = 4
_TOLERANCE_US = 1e-6


def constant_lags(start_us: Floats, duration_us: Floats, edges: Edges) -> Floats:
    """Median of (start of target - when its source set it free) per kind, over decisive edges.

    An edge is decisive when no other edge into its target asks for a later start; which ones are
    depends on the lags, so the two are found in turn. A kind that never decided has lag 0.
    """
    free = free_us(start_us, duration_us, edges)
    gap = start_us[edges.target] - free
    kind = edges.kind
    lag = np.zeros(len(EdgeKind))
    bounds = np.array([PLAUSIBLE_US[EdgeKind(k)] for k in range(len(EdgeKind))])
    fixed = np.isin(kind, NO_LAG) | (gap < bounds[kind, 0]) | (gap > bounds[kind, 1])
    for _ in range(_ROUNDS):
        decisive = latest(free + lag[kind], edges.target, len(start_us)) & ~fixed
        for code in np.unique(kind[decisive]):
            lag[code] = np.median(gap[decisive & (kind == code)])
    return lag


def free_us(start_us: Floats, duration_us: Floats, edges: Edges) -> Floats:
    """Per edge: when its source lets its target go, lag aside."""
    source = edges.source
    return start_us[source] + duration_us[source] * (1 - edges.overlap_frac)


def latest(ready_us: Floats, target: Ints, count: int) -> Mask:
    """Which edges ask for the latest start of their target."""
    bound = np.full(count, -np.inf)
    np.maximum.at(bound, target, ready_us)
    return ready_us >= bound[target] - _TOLERANCE_US
