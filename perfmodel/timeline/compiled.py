"""The batched traversal, compiled by Numba; imported only where many are scheduled at once."""

from __future__ import annotations

import numpy as np
from numba import prange

from perfmodel.arrays import Floats, Ints
from perfmodel.jit import compiled

AT_ONCE = 64
"""Configurations that one thread takes through the graph together: their ends stay in its cache."""


@compiled(parallel=True)
def end_us_of_marks(
    order: Ints,
    first: Ints,
    source: Ints,
    lag_us: Floats,
    overlap_frac: Floats,
    release_us: Floats,
    duration_us: Floats,
    kept: Ints,
) -> Floats:
    """End of the nodes `kept` `[kept, configurations]`; arguments as in `batched.GraphArrays`."""
    nodes, configurations = duration_us.shape
    result = np.empty((len(kept), configurations), np.float64)
    for chunk in prange((configurations + AT_ONCE - 1) // AT_ONCE):
        begin = chunk * AT_ONCE
        width = min(AT_ONCE, configurations - begin)
        end = np.empty((nodes, width), np.float64)
        start = np.empty(width, np.float64)
        for at in range(nodes):
            node = order[at]
            start[:] = release_us[node]
            for edge in range(first[node], first[node + 1]):
                before, lag, share = source[edge], lag_us[edge], overlap_frac[edge]
                if share == 0.0:
                    for i in range(width):
                        start[i] = max(start[i], end[before, i] + lag)
                else:
                    for i in range(width):
                        free = end[before, i] - share * duration_us[before, begin + i]
                        start[i] = max(start[i], free + lag)
            for i in range(width):
                end[node, i] = start[i] + duration_us[node, begin + i]
        for row in range(len(kept)):
            result[row, begin : begin + width] = end[kept[row]]
    return result
