"""Boosted trees as plain data: read from and written to JSON, made from XGBoost's dumps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import ModelError
from perfmodel.kernels.learned.forest import Forest, joined

_STORED = {
    "column": "feature",
    "threshold": "threshold",
    "left": "below",
    "right": "above",
    "value": "value",
}
_DEEPEST = 16


def from_dict(found: Mapping[str, Any], columns: int) -> Forest:
    """From `to_dict`; raises `ModelError` for what is no such thing."""
    try:
        trees = [{own: tree[name] for name, own in _STORED.items()} for tree in found["trees"]]
        forest = joined(trees, float(found["base"]))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ModelError(f"trees: cannot be read: {error!r}") from None
    feature = forest.column("feature")
    known = (feature >= 0) & (feature < columns)
    if forest.depth > _DEEPEST or not known.all() or not np.isfinite(forest.value).all():
        raise ModelError("trees: too deep, of unknown columns, or not finite")
    return forest


def to_dict(forest: Forest) -> dict[str, Any]:
    """Plain data, one entry per tree."""
    ends = [*forest.roots[1:].tolist(), len(forest.value)]
    trees = []
    for root, end in zip(forest.roots.tolist(), ends, strict=True):
        own = {name: forest.column(each)[root:end] for name, each in _STORED.items()}
        own |= {name: own[name] - root for name in ("left", "right")}
        trees.append({name: _plain(values) for name, values in own.items()})
    return {"base": forest.start, "depth": forest.depth, "trees": trees}


def of_dumps(dumps: Sequence[Mapping[str, Any]], base: float, columns: Sequence[str]) -> Forest:
    """From XGBoost's JSON dumps of each tree (nested nodes)."""
    position = {name: index for index, name in enumerate(columns)}
    found = []

    def visit(node: Mapping[str, Any], tree: dict[str, list[float]]) -> int:
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
        tree["left"][here] = visit(children[node["yes"]], tree)
        tree["right"][here] = visit(children[node["no"]], tree)
        return here

    for dump in dumps:
        tree: dict[str, list[float]] = {name: [] for name in _STORED}
        visit(dump, tree)
        found.append(tree)
    return from_dict({"base": base, "trees": found}, len(columns))


def _plain(values: NDArray[Any]) -> list[float]:
    return [
        int(value) if float(value).is_integer() else round(float(value), 7)
        for value in values.tolist()
    ]
