"""How far the host is ahead of the device: operations launched that have not begun."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfmodel.trace.columns import Floats, RankTrace
from perfmodel.trace.link import Links


class QueueDepth(NamedTuple):
    """The launch queue within one step, all streams together."""

    step: str
    mean_count: float
    max_count: int
    empty_frac: float
    """Share of the step in which nothing waited: the host was no further than the device."""


def queue_depths(rank: RankTrace, links: Links) -> list[QueueDepth]:
    """One per step; none of a rank without launched operations.

    An operation waits from the end of its launch call to its own start; one that begins before
    the call ends does not wait. All of a graph launch wait from the end of the one call.
    """
    launched = links.device_launch >= 0
    if not launched.any():
        return []
    leaves = rank.start_us[links.device_rows[launched]]
    enters = np.minimum(rank.end_us[links.device_launch[launched]], leaves)
    at_us = np.concatenate([leaves, enters])
    change = np.repeat([-1, 1], len(leaves))
    order = np.lexsort((change, at_us))
    at_us, change = at_us[order], change[order]
    # Where an operation enters and leaves at once, the sum would dip: it never waited.
    depth = np.maximum(np.cumsum(change), 0)
    length = np.diff(at_us, append=at_us[-1])
    waited = np.concatenate([[0.0], np.cumsum(depth * length)[:-1]])
    empty = np.concatenate([[0.0], np.cumsum((depth == 0) * length)[:-1]])
    return [
        _within(name, low, high, at_us, depth, waited, empty)
        for name, low, high in zip(
            links.steps.names,
            links.steps.start_us.tolist(),
            links.steps.end_us.tolist(),
            strict=True,
        )
    ]


def _within(
    name: str,
    low: float,
    high: float,
    at_us: Floats,
    depth: Floats,
    waited: Floats,
    empty: Floats,
) -> QueueDepth:
    def passed(total: Floats) -> float:
        begun, over = np.interp([low, high], at_us, total)
        return float(over - begun)

    length = max(high - low, np.finfo(float).tiny)
    outside = max(at_us[0] - low, 0.0) + max(high - at_us[-1], 0.0)
    first, last = np.searchsorted(at_us, [low, high])
    inside = depth[max(first - 1, 0) : last]
    return QueueDepth(
        name,
        mean_count=passed(waited) / length,
        max_count=int(inside.max()) if len(inside) else 0,
        empty_frac=min((passed(empty) + min(float(outside), length)) / length, 1.0),
    )
