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
from perfmodel.cost.trees import forest_from_dict, forest_to_dict
from perfmodel.errors import ModelError
from perfmodel.files import read_bytes, write_text

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
