"""The walk through boosted trees compiled by Numba; imported only where Numba is loaded already."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import Floats
from perfmodel.jit import compiled

_WALKS = 64
"""Walks at once, at least: of few rows, each through several trees."""


@compiled(error_model="numpy")
def sums(
    roots: NDArray[np.int64],
    feature: NDArray[np.int64],
    threshold: NDArray[np.float32],
    below: NDArray[np.int64],
    value: NDArray[np.floating[Any]],
    depth: int,
    matrix: NDArray[np.float32],
) -> Floats:
    """The sum over trees for each column of `matrix` `[figures, rows]`; other arguments as in
    `forest.Forest`.

    Level by level for many walks, and without a branch: the next loads do not wait for the last.
    """
    rows = matrix.shape[1]
    trees = max(1, _WALKS // max(rows, 1))
    total = np.zeros(rows, np.float64)
    at = np.empty((trees, rows), np.int64)
    for begin in range(0, len(roots), trees):
        count = min(trees, len(roots) - begin)
        for tree in range(count):
            at[tree] = roots[begin + tree]
        for _ in range(depth):
            for tree in range(count):
                for row in range(rows):
                    node = at[tree, row]
                    is_above = matrix[feature[node], row] >= threshold[node]
                    at[tree, row] = below[node] + is_above
        for tree in range(count):
            for row in range(rows):
                total[row] += value[at[tree, row]]
    return total
