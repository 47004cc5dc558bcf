"""Model files of collectives: plain JSON with where it comes from; nothing executes on load."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from perfmodel.errors import ModelError
from perfmodel.files import read_bytes, write_text
from perfmodel.network import constants, trees
from perfmodel.network.calibration import Covariance
from perfmodel.network.constants import Constants
from perfmodel.network.learned import ONE_NODE, SEVERAL, Learned

SCHEMA = "perfmodel.collective-model/1"
NAME = "collective/learned"
_SHIPPED = "fitted.json"
_MOST_BYTES = 32_000_000
_LARGEST = 1e6
"""Above every constant that can be: microseconds, bytes, shares and factors."""


@cache
def shipped() -> Learned:
    """The model that the package carries."""
    content = files("perfmodel.network").joinpath(_SHIPPED).read_bytes()
    return from_dict(_parsed(content, _SHIPPED), _SHIPPED)


def load(path: Path) -> Learned:
    """The model in a file of `save`; raises `ModelError` for another file."""
    return from_dict(_parsed(read_bytes(path, max_bytes=_MOST_BYTES), str(path)), str(path))


def save(path: Path, model: Learned) -> None:
    """Write `model` as JSON, whole or not at all."""
    write_text(path, json.dumps(to_dict(model), allow_nan=False) + "\n")


def to_dict(model: Learned) -> dict[str, Any]:
    """Plain data."""
    return {
        "schema": SCHEMA,
        "about": dict(model.about),
        "constants": {name: float(f"{v:.5g}") for name, v in model.constants.values.items()},
        "columns": list(model.columns),
        "most": model.most,
        "spreads": dict(model.spreads),
        "covariances": {name: each.to_dict() for name, each in model.covariances.items()},
        "trees": trees.to_dict(model.trees),
    }


def from_dict(found: Mapping[str, Any], where: str) -> Learned:
    """From `to_dict`; raises `ModelError` that names `where`."""
    if found.get("schema") != SCHEMA:
        raise ModelError(f"{where}: no collective model (its schema is {found.get('schema')!r})")
    try:
        columns = tuple(str(name) for name in found["columns"])
        return Learned(
            name=NAME,
            constants=_constants(found["constants"], where),
            columns=columns,
            trees=trees.from_dict(found["trees"], len(columns)),
            most=_positive("most", found["most"]),
            spreads={name: _positive(name, found["spreads"][name]) for name in (ONE_NODE, SEVERAL)},
            covariances={
                name: _covariance(found["covariances"][name]) for name in (ONE_NODE, SEVERAL)
            },
            about=found["about"],
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelError(f"{where}: a damaged collective model: {error!r}") from None
    except ModelError as error:
        raise ModelError(f"{where}: a damaged collective model: {error}") from None


def _constants(found: Mapping[str, Any], where: str) -> Constants:
    known = constants.shipped().values
    return Constants({**found, **{name: _positive(name, found[name]) for name in known}}, where)


def _covariance(found: Mapping[str, Any]) -> Covariance:
    return Covariance.from_dict({name: _positive(name, value) for name, value in found.items()})


def _positive(name: str, value: Any) -> float:
    if not 0 < float(value) <= _LARGEST:
        raise ValueError(f"{name} is {value}; expected a number above 0, at most {_LARGEST:g}")
    return float(value)


def _parsed(content: bytes, where: str) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        raise ModelError(f"{where}: not JSON") from None
    if not isinstance(found, dict):
        raise ModelError(f"{where}: no collective model")
    return found
