"""Boosted trees as plain arrays: read from JSON, evaluated with NumPy alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import ModelError
from perfmodel.ops.spec import Floats


@dataclass(frozen=True)
class Trees:
    """Nodes of all trees in one row of arrays each `[trees, nodes]`; a leaf is its own child."""

    base: float
    column: NDArray[np.int32]
    threshold: NDArray[np.float32]
    left: NDArray[np.int32]
    right: NDArray[np.int32]
    value: NDArray[np.float64]
    """Of leaves; 0 elsewhere."""
    depth: int

    def predict(self, matrix: Floats) -> Floats:
        """The sum over the trees for each row of `matrix` `[rows, columns]`."""
        values = matrix.astype(np.float32)
        rows = np.arange(len(values))[:, None]
        trees = np.arange(len(self.column))[None, :]
        at = np.zeros((len(values), len(self.column)), np.int32)
        for _ in range(self.depth):
            goes_left = values[rows, self.column[trees, at]] < self.threshold[trees, at]
            at = np.where(goes_left, self.left[trees, at], self.right[trees, at])
        return np.asarray(self.base + self.value[trees, at].sum(axis=1), np.float64)

    @classmethod
    def from_dict(cls, found: Mapping[str, Any], columns: int) -> Trees:
        """From `to_dict`; raises `ModelError` for what is no such thing."""
        try:
            each = [
                [np.asarray(tree[name]) for tree in found["trees"]]
                for name in ("column", "threshold", "left", "right", "value")
            ]
            nodes = max(len(tree) for tree in each[0])
            column, threshold, left, right, value = (_padded(part, nodes) for part in each)
            trees = cls(
                float(found["base"]),
                column.astype(np.int32),
                threshold.astype(np.float32),
                left.astype(np.int32),
                right.astype(np.int32),
                value.astype(np.float64),
                int(found["depth"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ModelError(f"trees: cannot be read: {error!r}") from None
        if not (
            0 < trees.depth <= 16
            and _within(trees.left, nodes)
            and _within(trees.right, nodes)
            and _within(trees.column, columns)
            and np.isfinite(trees.value).all()
        ):
            raise ModelError("trees: a node points outside of its tree")
        return trees

    def to_dict(self) -> dict[str, Any]:
        """Plain data, one entry per tree."""
        names = ("column", "threshold", "left", "right", "value")
        trees = [
            {name: _plain(getattr(self, name)[tree]) for name in names}
            for tree in range(len(self.column))
        ]
        return {"base": self.base, "depth": self.depth, "trees": trees}


def of_dumps(dumps: Sequence[Mapping[str, Any]], base: float, columns: Sequence[str]) -> Trees:
    """From XGBoost's JSON dumps of each tree (nested nodes)."""
    position = {name: index for index, name in enumerate(columns)}
    found = []
    deepest = 1

    def visit(node: Mapping[str, Any], tree: dict[str, list[float]], level: int) -> int:
        nonlocal deepest
        deepest = max(deepest, level)
        here = len(tree["column"])
        for name in tree:
            tree[name].append(0)
        if "leaf" in node:
            tree["left"][here] = tree["right"][here] = here
            tree["value"][here] = round(float(node["leaf"]), 7)
            return here
        children = {child["nodeid"]: child for child in node["children"]}
        tree["column"][here] = position[node["split"]]
        tree["threshold"][here] = float(node["split_condition"])
        tree["left"][here] = visit(children[node["yes"]], tree, level + 1)
        tree["right"][here] = visit(children[node["no"]], tree, level + 1)
        return here

    for dump in dumps:
        tree: dict[str, list[float]] = {
            name: [] for name in ("column", "threshold", "left", "right", "value")
        }
        visit(dump, tree, 0)
        found.append(tree)
    return Trees.from_dict({"base": base, "depth": deepest, "trees": found}, len(columns))


def _padded(parts: Sequence[NDArray[Any]], nodes: int) -> NDArray[Any]:
    found = np.zeros((len(parts), nodes))
    for row, part in enumerate(parts):
        found[row, : len(part)] = part
    return found


def _within(values: NDArray[Any], limit: int) -> bool:
    return bool(((values >= 0) & (values < limit)).all())


def _plain(values: NDArray[Any]) -> list[float]:
    return [
        int(value) if float(value).is_integer() else round(float(value), 7)
        for value in values.tolist()
    ]
