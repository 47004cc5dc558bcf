"""The shipped collective model and its JSON file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import msgspec

from perfmodel.cost.collectives import heuristic
from perfmodel.cost.collectives.heuristic import Constants
from perfmodel.cost.collectives.learned import KERNELS, LATENCY_FRACS, ONE_NODE, SEVERAL, Learned
from perfmodel.cost.trees import forest_from_dict, forest_to_dict, read_document
from perfmodel.errors import ModelError
from perfmodel.files import write_text

SCHEMA = "perfmodel.collective-model/2"
NAME = "collective/learned"
Positive = Annotated[float, msgspec.Meta(gt=0.0, le=1e6)]
"""Microseconds, bytes, shares and factors: no constant is above."""
_PerFrac = Annotated[
    tuple[Positive, ...], msgspec.Meta(min_length=len(LATENCY_FRACS), max_length=len(LATENCY_FRACS))
]


class _File(msgspec.Struct):
    schema: str
    about: dict[str, Any]
    constants: dict[str, Positive]
    columns: tuple[str, ...]
    most: Positive
    spreads: dict[str, _PerFrac]
    fitted: dict[str, tuple[str, ...]]
    trees: dict[str, Any]


@cache
def shipped() -> Learned:
    """The model that the package carries."""
    return load(Path(__file__).with_name("fitted.json"))


def load(path: Path) -> Learned:
    """The model in a file of `save`; raises `ModelError` for another file."""
    return _model_of(read_document(path, SCHEMA), str(path))


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
        "spreads": {name: list(each) for name, each in model.spreads.items()},
        "fitted": {name: list(ops) for name, ops in model.fitted.items()},
        "trees": forest_to_dict(model.trees),
    }


def _model_of(content: Mapping[str, Any], where: str) -> Learned:
    try:
        held = msgspec.convert(content, _File)
        for name in heuristic.shipped().values:
            held.constants[name]  # each one is there
        return Learned(
            name=NAME,
            constants=Constants(held.constants, where),
            columns=held.columns,
            trees=forest_from_dict(held.trees, len(held.columns)),
            most=held.most,
            spreads={kind: held.spreads[kind] for kind in (ONE_NODE, SEVERAL, KERNELS)},
            fitted={kind: held.fitted[kind] for kind in (ONE_NODE, SEVERAL)},
            about=held.about,
        )
    except (KeyError, TypeError, msgspec.ValidationError) as error:
        raise ModelError(f"{where}: a damaged collective model: {error!r}") from None
    except ModelError as error:
        raise ModelError(f"{where}: a damaged collective model: {error}") from None
