"""Boosted trees as arrays: read from XGBoost's UBJSON and walked with NumPy.

For the few rows of one prediction this is faster than importing XGBoost; it reads numbers only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.ops.spec import Floats

_NUMBERS = {"i": ">i1", "U": ">u1", "I": ">i2", "l": ">i4", "L": ">i8", "d": ">f4", "D": ">f8"}
_DEEPEST = 64


@dataclass(frozen=True)
class Forest:
    """Nodes of all trees in one; a leaf is its own child on both sides."""

    roots: NDArray[np.int32]
    feature: NDArray[np.int32]
    threshold: NDArray[np.float32]
    below: NDArray[np.int32]
    above: NDArray[np.int32]
    value: NDArray[np.float32]
    depth: int
    start: float

    def predict(self, matrix: np.ndarray) -> Floats:
        """The sum over trees for each row of `matrix` `[rows, columns]`, without missing values."""
        single = np.ascontiguousarray(matrix, np.float32)
        width = single.shape[1]
        flat = single.ravel()
        begin = (np.arange(len(single), dtype=np.int32) * width)[:, None]
        node = np.broadcast_to(self.roots, (len(single), len(self.roots)))
        for _ in range(self.depth):
            goes_below = flat[begin + self.feature[node]] < self.threshold[node]
            node = np.where(goes_below, self.below[node], self.above[node])
        total: Floats = self.start + self.value[node].sum(axis=1, dtype=np.float64)
        return total


def decoded(raw: bytes) -> Forest:
    """The trees in an XGBoost model; raises `ValueError` or `KeyError` for anything else."""
    learner = _Reader(raw).value()["learner"]
    trees = learner["gradient_booster"]["model"]["trees"]
    sizes = np.array([len(tree["left_children"]) for tree in trees], np.int64)
    offsets = np.cumsum(sizes) - sizes

    def column(name: str, dtype: type) -> NDArray[Any]:
        return np.concatenate([np.asarray(tree[name], dtype) for tree in trees])

    shift = np.repeat(offsets, sizes)
    own = np.arange(int(sizes.sum()))
    left, right = column("left_children", np.int64), column("right_children", np.int64)
    is_leaf = left < 0
    conditions = column("split_conditions", np.float32)
    below = np.where(is_leaf, own, left + shift).astype(np.int32)
    above = np.where(is_leaf, own, right + shift).astype(np.int32)
    inside = (below >= 0) & (below < len(own)) & (above >= 0) & (above < len(own))
    if not inside.all():
        raise ValueError("a child outside its tree")
    roots = offsets.astype(np.int32)
    return Forest(
        roots=roots,
        feature=np.where(is_leaf, 0, column("split_indices", np.int64)).astype(np.int32),
        threshold=conditions,
        below=below,
        above=above,
        value=np.where(is_leaf, conditions, np.float32(0)),
        depth=_depth(roots, below, above),
        start=float(str(learner["learner_model_param"]["base_score"]).strip("[]")),
    )


def _depth(roots: NDArray[np.int32], below: NDArray[np.int32], above: NDArray[np.int32]) -> int:
    level = roots
    for depth in range(_DEEPEST):
        level = np.unique(np.concatenate([below[level], above[level]]))
        level = level[(below[level] != level)]
        if not len(level):
            return depth + 1
    raise ValueError("trees deeper than any that are grown")


class _Reader:
    """A decoder of UBJSON (ubjson.org, draft 12), with arrays of numbers as NumPy's."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.at = 0

    def value(self, kind: str | None = None) -> Any:
        kind = kind or self._letter()
        if kind == "{":
            return self._object()
        if kind == "[":
            return self._array()
        if kind == "S":
            return self._text()
        if kind in "TF":
            return kind == "T"
        if kind == "Z":
            return None
        return self._numbers(kind, 1)[0].item()

    def _letter(self) -> str:
        if self.at >= len(self.raw):
            raise ValueError("ends early")
        self.at += 1
        return chr(self.raw[self.at - 1])

    def _numbers(self, kind: str, count: int) -> NDArray[Any]:
        if kind not in _NUMBERS:
            raise ValueError(f"unknown type {kind!r}")
        found = np.frombuffer(self.raw, _NUMBERS[kind], count, self.at)
        self.at += found.nbytes
        return found

    def _count(self) -> int:
        return int(self._numbers(self._letter(), 1)[0])

    def _text(self) -> str:
        size = self._count()
        self.at += size
        return self.raw[self.at - size : self.at].decode()

    def _peek(self) -> str:
        letter = self._letter()
        self.at -= 1
        return letter

    def _header(self) -> tuple[str | None, int | None]:
        kind = count = None
        if self._peek() == "$":
            self.at += 1
            kind = self._letter()
        if self._peek() == "#":
            self.at += 1
            count = self._count()
        return kind, count

    def _object(self) -> dict[str, Any]:
        _, count = self._header()
        found: dict[str, Any] = {}
        while (self._peek() != "}") if count is None else len(found) < count:
            name = self._text()
            found[name] = self.value()
        if count is None:
            self.at += 1
        return found

    def _array(self) -> Any:
        kind, count = self._header()
        if kind is not None and count is not None:
            return self._numbers(kind, count)
        found: list[Any] = []
        while (self._peek() != "]") if count is None else len(found) < count:
            found.append(self.value())
        if count is None:
            self.at += 1
        return found
