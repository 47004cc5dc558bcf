"""Boosted trees as plain arrays, evaluated for whole columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import ModelError
from perfmodel.locality.popularity import Floats

_KEYS = ("feature", "threshold", "left", "right", "value")


@dataclass(frozen=True, eq=False)
class Trees:
    """All `[trees, nodes]`, padded: a node below `threshold` in its `feature` goes `left`.

    A leaf's `feature` is -1. What the trees say is `base` and their leaves' values added up.
    """

    feature: NDArray[np.int64]
    threshold: Floats
    left: NDArray[np.int64]
    right: NDArray[np.int64]
    value: Floats
    base: float

    @classmethod
    def from_document(cls, document: Mapping[str, Any], where: str) -> Trees:
        """From JSON; `ModelError` that names `where` for what is not such trees."""
        try:
            columns = [np.array(document[key]) for key in _KEYS]
            whole = [columns[at].astype(np.int64) for at in (0, 2, 3)]
            found = cls(
                whole[0],
                columns[1].astype(np.float64),
                whole[1],
                whole[2],
                columns[4].astype(np.float64),
                float(document["base"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ModelError(f"{where}: not trees of a model: {error}") from None
        nodes = found.feature.shape
        if len(nodes) != 2 or any(column.shape != nodes for column in columns):
            raise ModelError(f"{where}: not trees of a model: columns of different shapes")
        return found

    def __call__(self, features: Floats) -> Floats:
        """`features` `[rows, features]`; returns `[rows]`."""
        trees = np.arange(len(self.feature))
        at = np.zeros((len(features), len(trees)), np.int64)
        for _ in range(self.feature.shape[1]):
            feature = self.feature[trees, at]
            is_leaf = feature < 0
            if is_leaf.all():
                break
            chosen = np.take_along_axis(features, np.maximum(feature, 0), axis=1)
            lower = chosen < self.threshold[trees, at]
            following = np.where(lower, self.left[trees, at], self.right[trees, at])
            at = np.where(is_leaf, at, following)
        return np.asarray(self.base + self.value[trees, at].sum(axis=1))
