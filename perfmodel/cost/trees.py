"""Small boosted trees as plain JSON: of collectives and of network adapters."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from perfmodel.cost.learned.forest import Forest, joined
from perfmodel.errors import ModelError, PerfmodelError
from perfmodel.files import read_bytes

_STORED = {
    "column": "feature",
    "threshold": "threshold",
    "left": "below",
    "right": "above",
    "value": "value",
}
_DEEPEST = 16
_MAX_BYTES = 32_000_000


def forest_from_dict(content: Mapping[str, Any], columns: int) -> Forest:
    """From `forest_to_dict`; raises `ModelError` for anything else."""
    try:
        trees = [{own: tree[name] for name, own in _STORED.items()} for tree in content["trees"]]
        forest = joined(trees, float(content["base"])).of_width(columns)
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ModelError(f"trees: cannot be read: {error!r}") from None
    if forest.depth > _DEEPEST:
        raise ModelError(f"trees: deeper than {_DEEPEST}")
    return forest


def forest_to_dict(forest: Forest) -> dict[str, Any]:
    """Plain data, one entry per tree."""
    trees = [{name: _plain(tree[own]) for name, own in _STORED.items()} for tree in forest.trees()]
    return {"base": forest.start, "depth": forest.depth, "trees": trees}


def read_document(path: Path, schema: str) -> dict[str, Any]:
    """The JSON object of that schema in a file; raises `ModelError` that names the file."""
    try:
        document = json.loads(read_bytes(path, max_bytes=_MAX_BYTES))
    except PerfmodelError as error:
        raise ModelError(str(error)) from None
    except (ValueError, RecursionError):
        raise ModelError(f"{path}: not JSON") from None
    if not isinstance(document, dict) or document.get("schema") != schema:
        raise ModelError(f"{path}: expected a file of schema {schema}")
    return document


def read_trees(path: Path, schema: str, features: Sequence[str]) -> Forest:
    """Trees of those `features` in a file of that schema; raises `ModelError` for others."""
    document = read_document(path, schema)
    if document.get("features") != list(features):
        raise ModelError(f"{path}: trees of other features than {', '.join(features)}")
    try:
        return forest_from_dict(document.get("trees", {}), len(features))
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from None


def _plain(values: list[float]) -> list[float]:
    return [int(value) if float(value).is_integer() else round(float(value), 7) for value in values]
