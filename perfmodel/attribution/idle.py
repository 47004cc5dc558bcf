"""Every idle microsecond of the device gets one cause: what its next operation was waiting for."""

from __future__ import annotations

import numpy as np

from perfmodel.attribution.intervals import clip, gaps, union
from perfmodel.attribution.path import Path, Walker
from perfmodel.graph.kinds import Cause
from perfmodel.timeline.schedule import Timeline
from perfmodel.trace.columns import NONE, Ints


def idle_pieces(
    timeline: Timeline,
    device: tuple[Ints, Ints],
    low_us: float,
    high_us: float,
    walker: Walker,
) -> Path:
    """The idle time of a device within [low_us, high_us], piece by piece.

    `device` holds first and last node of its operations (`ExecutionGraph.device_span`).

    An idle interval ends where an operation starts; walking back along what decided that start
    says what the device waited for. After the last operation of the trace it is `end_of_step`.
    """
    first, last = device
    if not len(last):
        return Path([])
    order = first[np.argsort(timeline.start_us[first], kind="stable")]
    starts = timeline.start_us[order]
    busy = union(*clip(timeline.start_us[first], timeline.end_us[last], low_us, high_us))
    found: list[tuple[int, int, int, float, float]] = []
    begun, over = gaps(busy, low_us, high_us)
    following = np.searchsorted(starts, over, side="left")
    nodes = np.append(order, NONE)[following].tolist()
    resumes = np.append(starts, high_us)[following].tolist()
    for node, resumed, low, high in zip(nodes, resumes, begun.tolist(), over.tolist(), strict=True):
        if node == NONE:
            found.append((NONE, NONE, int(Cause.END_OF_STEP), low, high))
            continue
        pieces = walker.walk(node, resumed, low).plain
        if resumed > high:
            pieces = [(n, e, c, b, min(o, high)) for n, e, c, b, o in pieces if b < high]
        found += pieces
    return Path(found)
