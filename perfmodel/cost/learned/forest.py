"""Boosted trees as arrays, walked with NumPy.

XGBoost, which imports scikit-learn, is loaded by fits only; this reads numbers only.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import Floats, Ints
from perfmodel.cost.learned.sliced import MAX_DEPTH, Conditions, conditions_of, sums_of_bits

DEEPEST = 64
MAX_LOG = 50.0
"""Above the logarithm of every factor that kernels can be off by."""
_MANY_ROWS = 512
"""Rows from which bits are faster than walks."""
_AT_ONCE = 16384
"""Rows whose bits fit in a processor's cache."""
_BLOCK_ROWS, _BLOCK_WALKS = 2048, 32768
"""So many walks at once, of so many rows at most, stay in a processor's cache."""


class Ensemble(Protocol):
    """A fitted regressor, and the content of the file that holds it."""

    packed: bytes
    suffix: str

    def predict(self, matrix: np.ndarray) -> Floats:
        """One answer per row of `matrix`."""
        ...


@dataclass(frozen=True)
class Forest:
    """Nodes of all trees in one, tree after tree, each level by level: an inner node's children lie
    side by side. A leaf is its own child, and no value reaches its threshold (NaN)."""

    roots: NDArray[np.int64]
    feature: NDArray[np.int64]
    threshold: NDArray[np.float32]
    below: NDArray[np.int64]
    """The child for values below the threshold; of an inner node the next is for others."""
    value: NDArray[np.floating[Any]]
    """Of leaves; 0 elsewhere."""
    depth: int
    start: float

    @property
    def above(self) -> NDArray[np.int64]:
        """The child for values that are not below the threshold."""
        return np.where(self.below == np.arange(len(self.below)), self.below, self.below + 1)

    @cached_property
    def conditions(self) -> Conditions:
        """What inner nodes ask."""
        return conditions_of(self.feature, self.threshold, self.below)

    def of_width(self, columns: int) -> Forest:
        """Itself; raises `ValueError` where a node asks for another than so many columns."""
        if self.feature.min(initial=0) < 0 or self.feature.max(initial=-1) >= columns:
            raise ValueError(f"a node asks for a column that is none of {columns}")
        return self

    def predict(self, matrix: np.ndarray) -> Floats:
        """The sum over trees for each row of `matrix` `[rows, columns]`, without missing values.

        Of few rows by a walk of each; where a sweep has loaded Numba, which takes a third of a
        second, by its walk, which says the same and is two to three times faster.
        """
        single = np.ascontiguousarray(matrix, np.float32)
        is_many = len(single) >= _MANY_ROWS and self.depth <= MAX_DEPTH
        if "numba" in sys.modules and not is_many:
            from perfmodel.cost.learned.compiled import sums

            nodes = self.feature, self.threshold, self.below, self.value, self.depth
            across = np.ascontiguousarray(single.T)
            return self.start + np.asarray(sums(self.roots, *nodes, across))
        rows, found = (_AT_ONCE, self._by_bits) if is_many else (_BLOCK_ROWS, self._walked)
        blocks = [found(single[at : at + rows]) for at in range(0, len(single), rows)]
        return np.concatenate(blocks or [np.zeros(0)])

    def _by_bits(self, single: NDArray[np.float32]) -> Floats:
        shape = self.roots, self.below, self.value, self.depth
        return self.start + sums_of_bits(*shape, self.conditions, single)

    def _walked(self, single: NDArray[np.float32]) -> Floats:
        total = np.full(len(single), self.start)
        trees = _BLOCK_WALKS // len(single)
        for begin in range(0, len(self.roots), trees):
            total += self._walked_through(self.roots[begin : begin + trees], single)
        return total

    def _walked_through(
        self, roots: NDArray[np.int64], single: NDArray[np.float32]
    ) -> NDArray[np.float64]:
        """The sum over the trees of `roots`. Every index is one that there is: `clip`, which never
        has to, spares their checks."""
        flat, (rows, width) = single.ravel(), single.shape
        begin = np.arange(rows) * width
        at = np.repeat(roots[:, None], rows, axis=1)
        place, (value, limit) = np.empty_like(at), np.empty((2, *at.shape), np.float32)
        for _ in range(self.depth):
            self.feature.take(at, out=place, mode="clip")
            place += begin
            flat.take(place, out=value, mode="clip")
            self.threshold.take(at, out=limit, mode="clip")
            self.below.take(at, out=place, mode="clip")
            np.add(place, value >= limit, out=at)
        summed: NDArray[np.float64] = self.value.take(at).sum(axis=0, dtype=np.float64)
        return summed


COLUMNS = ("feature", "threshold", "below", "above", "value")


def joined(trees: Sequence[Mapping[str, Any]], start: float) -> Forest:
    """Trees of one array per name of `COLUMNS`, children counted from each tree's first node.

    A leaf's children are itself or negative. Raises `ValueError` for nodes that are no tree, and
    for numbers that are not finite.
    """
    columns = {name: _column([tree[name] for tree in trees]) for name in COLUMNS}
    sizes = np.array([len(tree["value"]) for tree in trees], np.int64)
    if any([len(tree[name]) for tree in trees] != sizes.tolist() for name in COLUMNS):
        raise ValueError("columns of different lengths")
    if not sizes.all() or not np.isfinite(start):
        raise ValueError("a tree without nodes, or a start that is no number")
    offsets = np.cumsum(sizes) - sizes
    shift, own = np.repeat(offsets, sizes), np.arange(int(sizes.sum()))
    last = np.repeat(offsets + sizes, sizes)
    children = (np.clip(columns[name], -1, len(own)) for name in ("below", "above"))
    left, right = (child.astype(np.int64) for child in children)
    is_leaf, ends = ((child < 0) | (child + shift == own) for child in (left, right))
    if (is_leaf != ends).any():
        raise ValueError("a node with one child")
    below, above = (np.where(is_leaf, own, each + shift) for each in (left, right))
    if not ((below >= shift) & (below < last) & (above >= shift) & (above < last)).all():
        raise ValueError("a node points outside of its tree")
    order, depth = _by_level(offsets, below, above)
    tree = np.repeat(np.arange(len(sizes)), sizes)
    order = order[np.argsort(tree[order], kind="stable")]
    place = np.zeros(len(own), np.int64)
    place[order] = own[: len(order)]
    is_leaf = is_leaf[order]
    return Forest(
        roots=place[offsets],
        feature=np.where(is_leaf, 0, columns["feature"][order]).astype(np.int64),
        threshold=np.where(is_leaf, np.nan, columns["threshold"][order]).astype(np.float32),
        below=place[below[order]],
        value=np.where(is_leaf, columns["value"][order], 0.0),
        depth=depth,
        start=start,
    )


def _column(trees: Sequence[Any]) -> NDArray[Any]:
    """The nodes of all trees, one number each, that single precision holds."""
    values = np.concatenate([np.asarray(nodes) for nodes in trees])
    if values.ndim != 1 or values.dtype.kind not in "iuf":
        raise ValueError("nodes that are no numbers")
    if not (np.abs(values.astype(np.float64)) <= np.finfo(np.float32).max).all():
        raise ValueError("a node with a number that is not finite")
    return values


def _by_level(roots: Ints, below: Ints, above: Ints) -> tuple[Ints, int]:
    """(the nodes that walks reach, level by level, siblings together; the steps of a walk)."""
    levels = [roots]
    while len(inner := levels[-1][below[levels[-1]] != levels[-1]]):
        levels.append(np.stack([below[inner], above[inner]], axis=1).ravel())
        if len(levels) > DEEPEST:
            raise ValueError("trees deeper than any that are grown")
        if len(levels[-1]) > len(below):
            raise ValueError("a node has more than one parent")
    order = np.concatenate(levels)
    if (np.bincount(order, minlength=1) > 1).any():
        raise ValueError("a node has more than one parent")
    return order, max(len(levels) - 1, 1)
