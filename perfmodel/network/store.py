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
from perfmodel.network.calibration import Covariance
from perfmodel.network.constants import Constants
from perfmodel.network.learned import Learned
from perfmodel.network.trees import Trees

SCHEMA = "perfmodel.collective-model/1"
NAME = "collective/learned"
_SHIPPED = "fitted.json"
_MOST_BYTES = 32_000_000


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
        "trees": model.trees.to_dict(),
    }


def from_dict(found: Mapping[str, Any], where: str) -> Learned:
    """From `to_dict`; raises `ModelError` that names `where`."""
    if found.get("schema") != SCHEMA:
        raise ModelError(f"{where}: no collective model (its schema is {found.get('schema')!r})")
    try:
        columns = tuple(str(name) for name in found["columns"])
        return Learned(
            name=NAME,
            constants=Constants({name: float(v) for name, v in found["constants"].items()}, where),
            columns=columns,
            trees=Trees.from_dict(found["trees"], len(columns)),
            most=float(found["most"]),
            spreads={name: float(value) for name, value in found["spreads"].items()},
            covariances={
                name: Covariance.from_dict(each) for name, each in found["covariances"].items()
            },
            about=found["about"],
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelError(f"{where}: a damaged collective model: {error!r}") from None


def _parsed(content: bytes, where: str) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except ValueError:
        raise ModelError(f"{where}: not JSON") from None
    if not isinstance(found, dict):
        raise ModelError(f"{where}: no collective model")
    return found
