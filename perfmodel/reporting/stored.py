"""Answers of `predict`, `breakdown`, `compare` and `plan` that were stored as JSON, read back.

Each says by its schema what it is, and by `made_by` which version, catalogues and models made it
(answers of the first releases do not). A schema of another version is refused in one line.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from perfmodel import __version__
from perfmodel.errors import UsageError
from perfmodel.files import read_bytes
from perfmodel.prediction.types import DEVICE_FIGURES

STEP, PATH, PIECE, FAMILY, IDLE = GROUPS = (
    *("step", "critical path", "on the path", "device", "idle"),
)
"""What is compared: figures of the step; its critical path by kind, and by what lies on it; device
time by kernel family; idle time by cause."""

Figures = Mapping[tuple[str, str], float]
"""Microseconds per step by (group, name)."""
MEASURED = "trace"
_VERSION = 1
"""Of all schemas that are read."""
_SCHEMA = re.compile(rb'\s*\{\s*"schema"\s*:\s*"perfmodel\.([\w.-]+)/(\d+)"')
_NAMED = re.compile(rb'"made_by"\s*:\s*\{\s*"perfmodel"\s*:\s*"([^"]{1,40})"')
_STEP_KEYS = ("step_us", *DEVICE_FIGURES)


@dataclass(frozen=True)
class Side:
    """One of the two: where it came from, and microseconds per step by (group, name)."""

    source: str
    hardware: str
    figures: Figures
    kind: str = MEASURED
    """The word of its schema, or `trace`; predictions and traces have the same figures."""
    made_by: Mapping[str, str] | None = None
    """Of a stored answer that says so: version of the package, fingerprints of its data."""
    about: str | None = None
    """What a stored answer says of its input; None where it was made just now."""


def stored_side(path: Path, max_bytes: int) -> Side | None:
    """The answer stored at `path`, or None where it is something else.

    Raises `UsageError` for an answer of another verb or version, and for a damaged one.
    """
    if path.suffix.lower() != ".json" or not path.is_file():
        return None
    content = read_bytes(path, max_bytes=max_bytes)
    match = _SCHEMA.match(content)
    if match is None:
        return None
    kind, version = match[1].decode(), int(match[2])
    schema = f"perfmodel.{kind}/{version}"
    if kind not in _FIGURES or version != _VERSION:
        maker = _NAMED.search(content[:400])
        made = f", made by perfmodel {maker[1].decode(errors='replace')}" if maker else ""
        known = ", ".join(f"{each}/{_VERSION}" for each in _FIGURES)
        raise UsageError(
            f"{path}: {schema}{made}: perfmodel {__version__} compares {known}; "
            "make the answer anew with this version"
        )
    try:
        answer = json.loads(content)
        figures = _FIGURES[kind](answer)
        made_by = {key: _text(answer["made_by"], key) for key in answer.get("made_by", ())}
        about, hardware = _ABOUT[kind](answer)
        described = json.dumps([kind, hardware, about], sort_keys=True)
        return Side(str(path), hardware, figures, kind, made_by or None, described)
    except (KeyError, IndexError) as error:
        raise UsageError(f"{path}: not a sound {schema}: no {error}") from None
    except (TypeError, AttributeError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not a sound {schema}: {error}") from None


def figures_of_result(result: Mapping[str, Any]) -> dict[tuple[str, str], float]:
    """Of one result of a prediction. Raises `KeyError`, `TypeError` or `ValueError`."""
    figures: defaultdict[tuple[str, str], float] = defaultdict(float)
    for key in _STEP_KEYS:
        figures[STEP, key.removesuffix("_us")] = _time_us(result, key)
    for piece in result["critical_path"]:
        for group, name in ((PATH, "kind"), (PIECE, "name")):
            figures[group, _text(piece, name)] += _time_us(piece, "duration_us")
    for family in result["families"]:
        figures[FAMILY, _text(family, "family")] = _time_us(family, "time_us")
    return dict(figures)


def _of_prediction(answer: Mapping[str, Any]) -> Figures:
    return figures_of_result(answer["results"][0])


def _of_breakdown(answer: Mapping[str, Any]) -> Figures:
    """Of the slowest rank: means over the steps that are not warm-up."""
    number = answer["slowest_rank"]
    summary = next(each for each in answer["summary"] if each["rank"] == number)
    rank = next(each for each in answer["ranks"] if each["rank"] == number)
    figures: defaultdict[tuple[str, str], float] = defaultdict(float)
    for key in _STEP_KEYS:
        if key in summary:
            figures[STEP, key.removesuffix("_us")] = _time_us(summary, key)
    steps = [step for step in rank["steps"] if step["role"] != "warm-up"] or rank["steps"]
    for step in steps:
        for group, key in ((PATH, "critical_path_by_kind"), (IDLE, "idle_by_cause")):
            for name in step[key]:
                figures[group, name] += _time_us(step[key], name) / len(steps)
    return dict(figures)


def _of_comparison(answer: Mapping[str, Any]) -> Figures:
    """The step of each design that can be."""
    rows = [row for row in answer["designs"] if row["feasible"]]
    return {(STEP, _text(row, "design")): _time_us(row, "step_us") for row in rows}


def _of_plan(answer: Mapping[str, Any]) -> Figures:
    """The step as scheduled, and what the search made of it."""
    keys = ("step_us", "surrogate_us", "bound_us")
    return {(STEP, key.removesuffix("_us")): _time_us(answer, key) for key in keys}


_FIGURES: Mapping[str, Callable[[Mapping[str, Any]], Figures]] = {
    "prediction": _of_prediction,
    "breakdown": _of_breakdown,
    "compare": _of_comparison,
    "plan": _of_plan,
}


def _prediction_about(answer: Mapping[str, Any]) -> tuple[object, str]:
    result, source = answer["results"][0], answer["source"]
    keys = ("trace", "device", "ranks", "implementation", "batch", "training", "edits")
    about = {key: source.get(key) for key in keys}
    return [about, _text(result, "mode")], _text(result, "hardware")


def _breakdown_about(answer: Mapping[str, Any]) -> tuple[object, str]:
    ranks = answer["ranks"]
    steps = [[rank["rank"], [step["name"] for step in rank["steps"]]] for rank in ranks]
    return steps, _text(ranks[0], "device")


def _deployment_about(answer: Mapping[str, Any]) -> tuple[object, str]:
    keys = ("workload", "batch", "devices", "ranks", "training", "rate_per_s", "estimator")
    return {key: answer.get(key) for key in keys}, _text(answer, "hardware")


_ABOUT: Mapping[str, Callable[[Mapping[str, Any]], tuple[object, str]]] = {
    "prediction": _prediction_about,
    "breakdown": _breakdown_about,
    "compare": _deployment_about,
    "plan": _deployment_about,
}
"""What an answer says of its input, and its hardware."""


def _time_us(holder: Mapping[str, Any], key: str) -> float:
    value = holder[key]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value):
        raise ValueError(f"{key} is {str(value)[:40]!r}; expected a number")
    return value


def _text(holder: Mapping[str, Any], key: str) -> str:
    value = holder[key]
    if not isinstance(value, str):
        raise ValueError(f"{key} is {str(value)[:40]!r}; expected a text")
    return value
