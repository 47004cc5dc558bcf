"""Model files of collectives: plain JSON, trees too; nothing executes on load."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from perfmodel.cost.collectives import heuristic
from perfmodel.cost.collectives.heuristic import Constants
from perfmodel.cost.collectives.learned import (
    KERNELS,
    LATENCY_FRACS,
    ONE_NODE,
    SEVERAL,
    Covariance,
    Learned,
    Spread,
)
from perfmodel.cost.learned.forest import Forest, joined
from perfmodel.errors import ModelError
from perfmodel.files import read_bytes, write_text

_STORED = {
    "column": "feature",
    "threshold": "threshold",
    "left": "below",
    "right": "above",
    "value": "value",
}
_DEEPEST = 16


def forest_from_dict(content: Mapping[str, Any], columns: int) -> Forest:
    """From `to_dict`; raises `ModelError` for what is no such thing."""
    try:
        trees = [{own: tree[name] for name, own in _STORED.items()} for tree in content["trees"]]
        forest = joined(trees, float(content["base"])).of_width(columns)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ModelError(f"trees: cannot be read: {error!r}") from None
    if forest.depth > _DEEPEST:
        raise ModelError(f"trees: deeper than {_DEEPEST}")
    return forest


def forest_to_dict(forest: Forest) -> dict[str, Any]:
    """Plain data, one entry per tree."""
    trees = [{name: _plain(tree[own]) for name, own in _STORED.items()} for tree in forest.trees()]
    return {"base": forest.start, "depth": forest.depth, "trees": trees}


def of_dumps(dumps: Sequence[Mapping[str, Any]], base: float, columns: Sequence[str]) -> Forest:
    """From XGBoost's JSON dumps of each tree (nested nodes)."""
    position = {name: index for index, name in enumerate(columns)}
    trees = []

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
        trees.append(tree)
    return forest_from_dict({"base": base, "trees": trees}, len(columns))


def _plain(values: list[float]) -> list[float]:
    return [int(value) if float(value).is_integer() else round(float(value), 7) for value in values]


SCHEMA = "perfmodel.collective-model/2"
NAME = "collective/learned"
_SHIPPED = "fitted.json"
_MAX_BYTES = 32_000_000
_LARGEST = 1e6
"""Above every constant that can be: microseconds, bytes, shares and factors."""


@cache
def shipped() -> Learned:
    """The model that the package carries."""
    content = Path(__file__).with_name(_SHIPPED).read_bytes()
    return model_from_dict(_parsed(content, _SHIPPED), _SHIPPED)


def load(path: Path) -> Learned:
    """The model in a file of `save`; raises `ModelError` for another file."""
    return model_from_dict(_parsed(read_bytes(path, max_bytes=_MAX_BYTES), str(path)), str(path))


def save(path: Path, model: Learned) -> None:
    """Write `model` as JSON, whole or not at all."""
    write_text(path, json.dumps(model_to_dict(model), allow_nan=False) + "\n")


def model_to_dict(model: Learned) -> dict[str, Any]:
    """Plain data."""
    return {
        "schema": SCHEMA,
        "about": dict(model.about),
        "constants": {name: float(f"{v:.5g}") for name, v in model.constants.values.items()},
        "columns": list(model.columns),
        "most": model.most,
        "spreads": {name: list(each.sd) for name, each in model.spreads.items()},
        "fitted": {name: list(ops) for name, ops in model.fitted.items()},
        "covariances": {name: each.to_dict() for name, each in model.covariances.items()},
        "trees": forest_to_dict(model.trees),
    }


def model_from_dict(content: Mapping[str, Any], where: str) -> Learned:
    """From `to_dict`; raises `ModelError` that names `where`."""
    if content.get("schema") != SCHEMA:
        raise ModelError(
            f"{where}: not a collective model (its schema is {content.get('schema')!r})"
        )
    try:
        columns = tuple(str(name) for name in content["columns"])
        return Learned(
            name=NAME,
            constants=_constants(content["constants"], where),
            columns=columns,
            trees=forest_from_dict(content["trees"], len(columns)),
            most=_positive("most", content["most"]),
            spreads={
                kind: _spread(kind, content["spreads"][kind])
                for kind in (ONE_NODE, SEVERAL, KERNELS)
            },
            covariances={
                name: _covariance(content["covariances"][name]) for name in (ONE_NODE, SEVERAL)
            },
            fitted={kind: tuple(map(str, content["fitted"][kind])) for kind in (ONE_NODE, SEVERAL)},
            about=content["about"],
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelError(f"{where}: a damaged collective model: {error!r}") from None
    except ModelError as error:
        raise ModelError(f"{where}: a damaged collective model: {error}") from None


def _constants(content: Mapping[str, Any], where: str) -> Constants:
    known = heuristic.shipped().values
    return Constants({**content, **{name: _positive(name, content[name]) for name in known}}, where)


def _spread(kind: str, content: Sequence[Any]) -> Spread:
    if len(content) != len(LATENCY_FRACS):
        raise ValueError(f"spreads: {kind}: expected {len(LATENCY_FRACS)} numbers")
    return Spread(tuple(_positive(kind, each) for each in content))


def _covariance(content: Mapping[str, Any]) -> Covariance:
    return Covariance.from_dict({name: _positive(name, value) for name, value in content.items()})


def _positive(name: str, value: Any) -> float:
    if not 0 < float(value) <= _LARGEST:
        raise ValueError(f"{name} is {value}; expected a number above 0, at most {_LARGEST:g}")
    return float(value)


def _parsed(content: bytes, where: str) -> dict[str, Any]:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        raise ModelError(f"{where}: not JSON") from None
    if not isinstance(document, dict):
        raise ModelError(f"{where}: no collective model")
    return document
