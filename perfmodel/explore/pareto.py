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
    distinct, first = np.unique(values[known], axis=0, return_index=True)
    kept: list[int] = []
    front = np.empty((0, values.shape[1]))
    for at, row in enumerate(distinct):
        # Rows come in rising order: a later one can beat none of those before it.
        if not (front <= row).all(axis=1).any():
            kept.append(at)
            front = distinct[kept]
    return np.asarray(known[first[np.array(kept, np.int64)]], np.int64)
