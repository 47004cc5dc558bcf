"""What is compared: traces as measured, predictions, and stored answers, by rank."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel import __version__
from perfmodel.base.files import DEFAULT_MAX_BYTES, read_bytes
from perfmodel.base.frames import is_frame
from perfmodel.errors import UsageError
from perfmodel.prediction.breakdown.completeness import Gap, completeness
from perfmodel.prediction.types import Prediction
from perfmodel.reporting.measured_ranks import (
    STEP_KEYS,
    MeasuredRanks,
    RankSteps,
    scatters,
    short,
)
from perfmodel.timeline.steps import StepRole
from perfmodel.trace import Trace, read

if TYPE_CHECKING:
    import pandas as pd


STEP, PATH, PIECE, FAMILY, IDLE, MODULE = GROUPS = (
    *("step", "critical path", "on the path", "device", "idle", "module"),
)
"""What is compared: figures of the step; its critical path by kind, and by what lies on it; device
time by kernel family; idle time by cause."""

PLACE = "module's place"
"""Modules by their place in the tree: instead of by class where both sides have the same."""

Figures = Mapping[tuple[str, str], float]
"""Microseconds per step by (group, name)."""
MEASURED = "trace"
_VERSION = 1
"""Of all schemas that are read."""
_SCHEMA = re.compile(rb'\s*\{\s*"schema"\s*:\s*"perfmodel\.([\w.-]+)/(\d+)"')
_NAMED = re.compile(rb'"made_by"\s*:\s*\{\s*"perfmodel"\s*:\s*"([^"]{1,40})"')
ALIKE = (MEASURED, "prediction")
"""Kinds of answers with the same figures."""


@dataclass(frozen=True)
class Side:
    """One of the two: where it came from, and microseconds per step by (group, name)."""

    source: str
    hardware: str
    ranks: Mapping[int, RankSteps]
    rank: int
    """The one that stands for the job: the slowest."""
    figures_of: Callable[[int], Figures]
    """All figures of a rank; of an answer that holds one rank's path and kernels, those."""
    kind: str = MEASURED
    """The word of its schema, or `trace`; predictions and traces have the same figures."""
    made_by: Mapping[str, str] | None = None
    """Of a stored answer that says so: version of the package, fingerprints of its data."""
    about: str | None = None
    """What a stored answer says of its input; None where it was made just now."""
    measured: MeasuredRanks | None = None
    """Of a trace: what it is of."""
    gaps: Sequence[Gap] = ()
    """What the recording behind it cannot tell."""


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
    if kind not in _READERS or version != _VERSION:
        maker = _NAMED.search(content[:400])
        made = f", made by perfmodel {maker[1].decode(errors='replace')}" if maker else ""
        known = ", ".join(f"{each}/{_VERSION}" for each in _READERS)
        raise UsageError(
            f"{path}: {schema}{made}: perfmodel {__version__} compares {known}; "
            "make the answer anew with this version"
        )
    try:
        answer = json.loads(content)
        (rank, ranks, figures_of), about, hardware = _READERS[kind](answer)
        return Side(
            str(path),
            hardware,
            ranks,
            rank,
            figures_of,
            kind,
            made_by={k: _text(answer["made_by"], k) for k in answer.get("made_by", ())} or None,
            about=json.dumps([kind, hardware, about], sort_keys=True),
            gaps=[
                Gap(_text(each, "what"), tuple(map(str, each["touches"])))
                for each in answer.get("completeness", ())
            ],
        )
    except (KeyError, IndexError) as error:
        raise UsageError(f"{path}: not a sound {schema}: no {error}") from None
    except (TypeError, AttributeError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not a sound {schema}: {error}") from None


def figures_of_result(result: Mapping[str, Any]) -> dict[tuple[str, str], float]:
    """Of one result of a prediction. Raises `KeyError`, `TypeError` or `ValueError`."""
    figures: defaultdict[tuple[str, str], float] = defaultdict(float)
    for key in STEP_KEYS:
        figures[STEP, short(key)] = _time_us(result, key)
    for piece in result["critical_path"]:
        for group, name in ((PATH, "kind"), (PIECE, "name")):
            figures[group, _text(piece, name)] += _time_us(piece, "duration_us")
    for family in result["families"]:
        figures[FAMILY, _text(family, "family")] = _time_us(family, "time_us")
    return dict(figures)


_Answer = Mapping[str, Any]
_Ranks = tuple[int, Mapping[int, RankSteps], Callable[[int], Figures]]
_Read = tuple[_Ranks, object, str]
"""Of a stored answer: its ranks, what it says of its input, and its hardware."""


def _prediction(answer: _Answer) -> _Read:
    result, source = answer["results"][0], answer["source"]
    keys = ("trace", "device", "ranks", "implementation", "batch", "training", "edits")
    about = [{key: source.get(key) for key in keys}, _text(result, "mode")]
    return ranks_of_result(result), about, _text(result, "hardware")


def ranks_of_result(result: Mapping[str, Any]) -> _Ranks:
    """Of one result of a prediction: its slowest rank, every rank, and figures of a rank."""
    figures = figures_of_result(result)
    found: dict[int, dict[str, float]] = {}
    for row in result["per_rank"]:
        found[_number(row, "rank")] = {short(key): _time_us(row, key) for key in STEP_KEYS}
    slowest = next((n for n, us in found.items() if us[STEP] == figures[STEP, STEP]), 0)
    found.setdefault(slowest, {name: us for (group, name), us in figures.items() if group == STEP})
    memory = (result.get("memory") or {}).get("total_bytes")
    steps = [step for step in result["steps"] if step["role"] == StepRole.STEADY]
    spread = scatters({STEP: [_time_us(step, "step_us") for step in steps]})
    ranks = {
        rank: RankSteps(rank, medians, *((spread, memory) if rank == slowest else ({}, None)))
        for rank, medians in found.items()
    }

    def figures_of(rank: int) -> Figures:
        return {**figures, **{(STEP, name): us for name, us in found[rank].items()}}

    return slowest, ranks, figures_of


def _breakdown(answer: _Answer) -> _Read:
    ranks = {_number(rank, "rank"): rank for rank in answer["ranks"]}
    summaries = {each["rank"]: each for each in answer["summary"]}
    found = {}
    for number, rank in ranks.items():
        means = {
            short(key): _time_us(summaries[number], key)
            for key in STEP_KEYS
            if key in summaries[number]
        }
        columns = {name: [_time_us(step, f"{name}_us") for step in _steady(rank)] for name in means}
        gpus = [each for each in rank["memory"] if each["device"] != "cpu"] or rank["memory"]
        peaks = [_time_us(each, "peak_allocated_bytes") for each in gpus]
        found[number] = RankSteps(number, means, scatters(columns), max(peaks, default=None))
    about = [[rank, [step["name"] for step in each["steps"]]] for rank, each in ranks.items()]
    by_rank = answer["slowest_rank"], found, partial(_figures_of_breakdown, ranks, found)
    return by_rank, about, _text(answer["ranks"][0], "device")


def _steady(rank: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [s for s in rank["steps"] if s["role"] == StepRole.STEADY] or rank["steps"]


def _figures_of_breakdown(
    ranks: Mapping[int, Mapping[str, Any]], means: Mapping[int, RankSteps], number: int
) -> Figures:
    """Means over the steady steps."""
    figures: defaultdict[tuple[str, str], float] = defaultdict(float)
    figures |= {(STEP, name): us for name, us in means[number].medians_us.items()}
    steps = _steady(ranks[number])
    for step in steps:
        for group, key in ((PATH, "critical_path_by_kind"), (IDLE, "idle_by_cause")):
            for name in step[key]:
                figures[group, name] += _time_us(step[key], name) / len(steps)
    return dict(figures)


def _comparison(answer: _Answer) -> _Read:
    """The step of each design that can be."""
    rows = [row for row in answer["designs"] if row["feasible"]]
    return _of_no_rank(answer, {_text(row, "design"): _time_us(row, "step_us") for row in rows})


def _plan(answer: _Answer) -> _Read:
    """The step as scheduled, and what the search made of it."""
    keys = ("step_us", "surrogate_us", "bound_us")
    return _of_no_rank(answer, {short(key): _time_us(answer, key) for key in keys})


def _of_no_rank(answer: _Answer, figures: Mapping[str, float]) -> _Read:
    keys = ("workload", "batch", "devices", "ranks", "training", "rate_per_s", "estimator")
    about = {key: answer.get(key) for key in keys}
    steps = {(STEP, name): us for name, us in figures.items()}
    ranks = 0, {0: RankSteps(0, figures, {})}, lambda _: steps
    return ranks, about, _text(answer, "hardware")


_READERS: Mapping[str, Callable[[_Answer], _Read]] = {
    "prediction": _prediction,
    "breakdown": _breakdown,
    "compare": _comparison,
    "plan": _plan,
}


def _time_us(holder: _Answer, key: str) -> float:
    value = holder[key]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value):
        raise ValueError(f"{key} is {str(value)[:40]!r}; expected a number")
    return value


def _number(holder: _Answer, key: str) -> int:
    value = _time_us(holder, key)
    if not isinstance(value, int):
        raise ValueError(f"{key} is {str(value)[:40]!r}; expected a whole number")
    return value


def _text(holder: _Answer, key: str) -> str:
    value = holder[key]
    if not isinstance(value, str):
        raise ValueError(f"{key} is {str(value)[:40]!r}; expected a text")
    return value


def side_of(
    source: str | Path | Trace | Prediction | pd.DataFrame,
    *,
    max_bytes: int = DEFAULT_MAX_BYTES,
    steps_by: str = "",
) -> Side:
    """A trace (or a frame of its events) as it was measured, the first result of a prediction, or a
    stored answer's JSON.

    Raises `TraceError` for what is none of them, `UsageError` for an answer that cannot be read.
    """
    if is_frame(source):
        source = read(source, steps_by=steps_by)
    if isinstance(source, Prediction):
        result = source.results[0].to_dict()
        slowest, ranks, figures_of = ranks_of_result(result)
        return Side(
            str(source.source["trace"]),
            result["hardware"],
            ranks,
            slowest,
            figures_of,
            "prediction",
            gaps=source.gaps,
        )
    if isinstance(source, Trace):
        by_rank = MeasuredRanks.of(source)

        def measured_figures(rank: int) -> Figures:
            result = by_rank.job if rank == slowest else by_rank.of_rank(rank)
            figures = figures_of_result(result.to_dict())
            groups = zip((MODULE, PLACE), by_rank.modules_us(rank), strict=True)
            return figures | {(group, k): us for group, each in groups for k, us in each.items()}

        slowest = by_rank.job.rank.rank
        return Side(
            source.source,
            source.device,
            by_rank.steps,
            slowest,
            measured_figures,
            measured=by_rank,
            gaps=completeness(source, by_rank.timeline.graph),
        )
    path = str(source)
    if stored := stored_side(Path(path), max_bytes):
        return stored
    trace = read(path, max_bytes=max_bytes, steps_by=steps_by)
    return replace(side_of(trace), source=path)
