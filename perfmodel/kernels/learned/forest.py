"""Boosted trees as arrays, walked with NumPy.

For the few rows of one prediction this is faster than importing XGBoost; it reads numbers only.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from perfmodel.ops.spec import Floats

_DEEPEST = 64


class Ensemble(Protocol):
    """Trees, and the gzipped file that holds them."""

    packed: bytes

    def predict(self, matrix: np.ndarray) -> Floats:
        """One answer per row of `matrix`."""
        ...


@dataclass(frozen=True)
class Forest:
    """Nodes of all trees in one; a leaf is its own child on both sides."""

    roots: NDArray[np.int32]
    feature: NDArray[np.int32]
    threshold: NDArray[np.float32]
    below: NDArray[np.int32]
    above: NDArray[np.int32]
    value: NDArray[np.floating[Any]]
    """Of leaves; 0 elsewhere."""
    depth: int
    start: float

    def predict(self, matrix: np.ndarray) -> Floats:
        """The sum over trees for each row of `matrix` `[rows, columns]`, without missing values.

        Where a sweep has loaded Numba, which takes a third of a second, its walk is ten times
        faster.
        """
        single = np.ascontiguousarray(matrix, np.float32)
        if "numba" in sys.modules:
            from perfmodel.kernels.learned.compiled import sums

            across = np.ascontiguousarray(single.T)
            columns = self.feature, self.threshold, self._children, self.value
            return self.start + np.asarray(sums(self.roots, *columns, self.depth, across))
        width = single.shape[1]
        flat = single.ravel()
        begin = (np.arange(len(single), dtype=np.int32) * width)[:, None]
        node = np.broadcast_to(self.roots, (len(single), len(self.roots)))
        for _ in range(self.depth):
            goes_below = flat[begin + self.feature[node]] < self.threshold[node]
            node = np.where(goes_below, self.below[node], self.above[node])
        total: Floats = self.start + self.value[node].sum(axis=1, dtype=np.float64)
        return total

    @cached_property
    def _children(self) -> NDArray[np.int32]:
        """Above and below of each node in turn."""
        return np.ascontiguousarray(np.stack([self.above, self.below], axis=1).ravel())


COLUMNS = ("feature", "threshold", "below", "above", "value")


def joined(trees: Sequence[Mapping[str, Any]], start: float) -> Forest:
    """Trees of one array per name of `COLUMNS`, children counted from each tree's first node.

    A leaf's children are itself or negative. Raises `ValueError` for nodes that are no tree.
    """
    sizes = np.array([len(tree["value"]) for tree in trees], np.int64)
    offsets = np.cumsum(sizes) - sizes
    shift, own = np.repeat(offsets, sizes), np.arange(int(sizes.sum()))
    last = np.repeat(offsets + sizes, sizes)

    def column(name: str) -> NDArray[Any]:
        return np.concatenate([np.asarray(tree[name]) for tree in trees])

    left, right = column("below").astype(np.int64), column("above").astype(np.int64)
    is_leaf = (left < 0) | (left + shift == own)
    below, above = (np.where(is_leaf, own, each + shift) for each in (left, right))
    if not ((below >= shift) & (below < last) & (above >= shift) & (above < last)).all():
        raise ValueError("a node points outside of its tree")
    roots = offsets.astype(np.int32)
    return Forest(
        roots=roots,
        feature=np.where(is_leaf, 0, column("feature")).astype(np.int32),
        threshold=column("threshold").astype(np.float32),
        below=below.astype(np.int32),
        above=above.astype(np.int32),
        value=np.where(is_leaf, column("value"), 0.0),
        depth=_depth(roots, below, above),
        start=start,
    )


def _depth(roots: NDArray[Any], below: NDArray[Any], above: NDArray[Any]) -> int:
    level = roots
    for depth in range(_DEEPEST):
        level = np.unique(np.concatenate([below[level], above[level]]))
        level = level[(below[level] != level)]
        if not len(level):
            return depth + 1
    raise ValueError("trees deeper than any that are grown")
