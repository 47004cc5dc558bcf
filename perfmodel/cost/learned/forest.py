"""Boosted trees as arrays, walked with NumPy.

XGBoost, which imports scikit-learn, is loaded by fits only; this reads numbers only.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import Floats

_DEEPEST = 64
_MANY_ROWS = 20000
"""Rows from which Numba's import pays."""
_BLOCK_ROWS = 256
"""Walks of so many rows stay in a processor's cache."""


class Ensemble(Protocol):
    """A fitted regressor, and the content of the file that holds it."""

    packed: bytes
    suffix: str

    def predict(self, matrix: np.ndarray) -> Floats:
        """One answer per row of `matrix`."""
        ...


NODE = np.dtype(
    [("feature", np.int32), ("threshold", np.float32), ("below", np.int32), ("above", np.int32)]
)


@dataclass(frozen=True)
class Forest:
    """Nodes of all trees in one; a leaf is its own child on both sides."""

    roots: NDArray[np.int32]
    nodes: np.ndarray
    """`NODE`s: what a step of a walk reads lies together."""
    value: NDArray[np.floating[Any]]
    """Of leaves; 0 elsewhere."""
    depth: int
    start: float

    def column(self, name: str) -> NDArray[Any]:
        """What each node has of one of `COLUMNS`."""
        return self.value if name == "value" else self.nodes[name]

    def predict(self, matrix: np.ndarray) -> Floats:
        """The sum over trees for each row of `matrix` `[rows, columns]`, without missing values.

        Where a sweep has loaded Numba, which takes a third of a second, or rows are so many that
        it pays, its walk is ten times faster.
        """
        single = np.ascontiguousarray(matrix, np.float32)
        if "numba" in sys.modules or len(single) > _MANY_ROWS:
            from perfmodel.cost.learned.compiled import sums

            across = np.ascontiguousarray(single.T)
            return self.start + np.asarray(
                sums(self.roots, self.nodes, self.value, self.depth, across)
            )
        blocks = [single[at : at + _BLOCK_ROWS] for at in range(0, len(single), _BLOCK_ROWS)]
        return np.concatenate([self._walked(block) for block in blocks] or [np.zeros(0)])

    def _walked(self, single: NDArray[np.float32]) -> Floats:
        flat, width = single.ravel(), single.shape[1]
        begin = (np.arange(len(single), dtype=np.int32) * width)[:, None]
        at = np.broadcast_to(self.roots, (len(single), len(self.roots)))
        for _ in range(self.depth):
            node = self.nodes.take(at)
            is_below = flat.take(begin + node["feature"]) < node["threshold"]
            at = np.where(is_below, node["below"], node["above"])
        total: Floats = self.start + self.value.take(at).sum(axis=1, dtype=np.float64)
        return total


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
    nodes = np.empty(len(own), NODE)
    nodes["feature"] = np.where(is_leaf, 0, column("feature"))
    nodes["threshold"] = column("threshold")
    nodes["below"], nodes["above"] = below, above
    return Forest(
        roots=roots,
        nodes=nodes,
        value=np.where(is_leaf, column("value"), 0.0),
        depth=_depth(roots, below, above),
        start=start,
    )


def _depth(roots: NDArray[Any], below: NDArray[Any], above: NDArray[Any]) -> int:
    level = roots
    for depth in range(_DEEPEST):
        level = np.concatenate([below[level], above[level]])
        level = level[below[level] != level]
        if not len(level):
            return depth + 1
        if len(level) > len(below):
            raise ValueError("a node has more than one parent")
    raise ValueError("trees deeper than any that are grown")
