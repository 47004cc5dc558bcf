"""The points that no other point beats in everything."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perfmodel.trace.columns import Ints

Matrix = NDArray[np.float64]


def pareto(values: Matrix) -> Ints:
    """Rows of `values` `[points, objectives]`, less being better, that none other is at least as
    good as in all objectives and better in one; ordered by the first objective.

    Rows with a NaN are left out. Of equal rows, the first stays.
    """
    known = np.flatnonzero(~np.isnan(values).any(axis=1))
    left, first = np.unique(values[known], axis=0, return_index=True)
    kept: list[int] = []
    while len(first):
        # Rows come in rising order: none of those left can beat the first.
        kept.append(int(first[0]))
        stays = (left < left[0]).any(axis=1)
        left, first = left[stays], first[stays]
    return np.asarray(known[np.array(kept, np.int64)], np.int64)
