"""The walk through boosted trees compiled by Numba; imported only where Numba is loaded already."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.jit import compiled
from perfmodel.ops.spec import Floats


@compiled(error_model="numpy")
def sums(
    roots: NDArray[np.int32],
    feature: NDArray[np.int32],
    threshold: NDArray[np.float32],
    children: NDArray[np.int32],
    value: NDArray[np.floating[Any]],
    depth: int,
    matrix: NDArray[np.float32],
) -> Floats:
    """The sum over trees for each column of `matrix` `[figures, rows]`; `children` of a node are
    those above and below its threshold, other arguments as in `forest.Forest`.

    Level by level for all rows, and without a branch: the next loads do not wait for the last.
    """
    rows = matrix.shape[1]
    found = np.zeros(rows, np.float64)
    node = np.empty(rows, np.int32)
    for root in roots:
        node[:] = root
        for _ in range(depth):
            for row in range(rows):
                at = node[row]
                is_below = np.int32(matrix[feature[at], row] < threshold[at])
                node[row] = children[2 * at + is_below]
        for row in range(rows):
            found[row] += value[node[row]]
    return found
