"""How much of each small bin of time is covered: what keeps a figure of many pieces true and small.

Pieces narrower than a pixel cannot be drawn one by one without hiding each other. A lane is cut
into bins instead, and in each bin a colour is as high as its share of the time, so that the
coloured area is the time itself at every zoom.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def coverage(start_us: Floats, end_us: Floats, edges_us: Floats) -> Floats:
    """Share (0..1) of each bin between neighbouring `edges_us` that the union of pieces covers."""
    if not len(start_us):
        return np.zeros(len(edges_us) - 1)
    order = np.argsort(start_us, kind="stable")
    start_us, end_us = start_us[order], end_us[order]
    latest = np.maximum.accumulate(end_us)
    begun = start_us.copy()
    begun[1:] = np.maximum(begun[1:], latest[:-1])
    ended = np.maximum(end_us, begun)
    time_us = np.stack([begun, ended], axis=1).reshape(-1)
    taken_us = np.cumsum(ended - begun)
    covered_us = np.stack([taken_us - (ended - begun), taken_us], axis=1).reshape(-1)
    at_edges_us = np.interp(edges_us, time_us, covered_us)
    share: Floats = np.diff(at_edges_us) / np.diff(edges_us)
    return share


def step_polygon(edges: Floats, base: Floats, top: Floats) -> Floats:
    """Corners [n x 2] of the area between two step functions over bins, equal bins as one."""
    changed = (np.diff(base) != 0) | (np.diff(top) != 0)
    first = np.concatenate([[True], changed])
    bounds = np.append(edges[:-1][first], edges[-1])
    x = np.repeat(bounds, 2)[1:-1]
    above = np.stack([x, np.repeat(top[first], 2)], axis=1)
    below = np.stack([x, np.repeat(base[first], 2)], axis=1)
    return np.concatenate([above, below[::-1]])
