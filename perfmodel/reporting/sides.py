"""What is compared: traces as measured, predictions, and stored answers, by rank."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel import __version__
from perfmodel.base.arrays import median
from perfmodel.base.files import DEFAULT_MAX_BYTES, read_bytes
from perfmodel.errors import UsageError
from perfmodel.prediction.breakdown.completeness import Gap, completeness
from perfmodel.prediction.breakdown.hotspots import Hotspots
from perfmodel.prediction.breakdown.tables import NamedSums, range_rows
from perfmodel.prediction.result import summarise
from perfmodel.prediction.types import DEVICE_FIGURES, Prediction, Result
from perfmodel.timeline.graph import build_graph
from perfmodel.timeline.idle import DeviceWork, account
from perfmodel.timeline.memory import memory_timelines, shown_timelines
from perfmodel.timeline.schedule import StepRole, measured, steady_steps, step_bounds
from perfmodel.trace import Trace, read

STEP, PATH, PIECE, FAMILY, IDLE, MODULE = GROUPS = (
    *("step", "critical path", "on the path", "device", "idle", "module"),
)
"""What is compared: figures of the step; its critical path by kind, and by what lies on it; device
time by kernel family; idle time by cause."""
PLACE = "module's place"
"""Modules by their place in the tree: instead of by class where both sides have the same."""
STEP_KEYS = ("step_us", *DEVICE_FIGURES)
FEW_STEPS = 5
"""Of fewer steps the scatter is half of their range; of more, outliers do not count."""
DEVIATION = 1.4826
"""Median absolute deviations in a standard deviation of normal values."""
Figures = Mapping[tuple[str, str], float]
"""Microseconds per step by (group, name)."""
MEASURED = "trace"
_VERSION = 1
"""Of all schemas that are read."""
_SCHEMA = re.compile(rb'\s*\{\s*"schema"\s*:\s*"perfmodel\.([\w.-]+)/(\d+)"')
_NAMED = re.compile(rb'"made_by"\s*:\s*\{\s*"perfmodel"\s*:\s*"([^"]{1,40})"')


@dataclass(frozen=True)
class RankSteps:
    """One rank's steps: medians in microseconds, and by which share of them steps scatter."""

    medians_us: Mapping[str, float]
    """By name: `step`, `gpu_active`, `comm`, ..."""
    scatter_frac: Mapping[str, float]
    """Of the names of which several steps are known."""
    memory_bytes: float | None = None
    """Peak of what its GPUs (without any, its host) allocated, where that was recorded."""


@dataclass(frozen=True)
class Side:
    """One of the two: where it came from, and microseconds per step by (group, name)."""

    source: str
    hardware: str
    rank: int
    """The one that stands for the job: the slowest."""
    ranks: Mapping[int, RankSteps]
    figures_of: Callable[[int], Figures]
    """All figures of a rank; of an answer that holds one rank's path and kernels, those."""
    kind: str = MEASURED
    """The word of its schema, or `trace`; predictions and traces have the same figures."""
    made_by: Mapping[str, str] | None = None
    """Of a stored answer that says so: version of the package, fingerprints of its data."""
    about: str | None = None
    """What a stored answer says of its input; None where it was made just now."""
    work_of: Callable[[int], NamedSums] | None = None
    """Of a trace: what a rank's steady steps ran, by name: kernels, else operators."""
    is_window: bool = False
    """Of a trace: nothing marks steps, so that how much work is in one is anybody's guess."""
    gaps: Sequence[Gap] = ()
    """What the recording behind it cannot tell."""


def side_of(
    source: str | Path | Trace | Prediction,
    *,
    max_bytes: int = DEFAULT_MAX_BYTES,
    steps_by: str = "",
) -> Side:
    """A trace as it was measured, the first result of a prediction, or a stored answer's JSON.

    Raises `TraceError` for what is none of them, `UsageError` for an answer that cannot be read.
    """
    if isinstance(source, Prediction):
        result = source.results[0].to_dict()
        name = str(source.source["trace"])
        by_rank = _ranks_of_result(result)
        return Side(name, result["hardware"], *by_rank, "prediction", gaps=source.gaps)
    if isinstance(source, Trace):
        return _measured_side(source)
    path = str(source)
    if stored := _stored_side(Path(path), max_bytes):
        return stored
    return replace(side_of(read(path, max_bytes=max_bytes, steps_by=steps_by)), source=path)


def _measured_side(trace: Trace) -> Side:
    """Raises `TraceError` where there is nothing to time."""
    timeline = measured(build_graph(trace))
    marks, steady = timeline.graph.marks, steady_steps(timeline)
    recorded = {
        rank.rank: (rank, links) for rank, links in zip(trace.ranks, trace.links, strict=True)
    }

    def of_rank(number: int | None) -> Result:
        return summarise(timeline, hardware=trace.device, mode="measured", rank=number)

    def hot(number: int) -> Hotspots:
        return Hotspots(*recorded[number], tuple(steady.tolist()))

    def work_of(number: int) -> NamedSums:
        found = hot(number)
        return found.kernels if len(found.kernels.names) else found.operators

    def figures_of(number: int) -> Figures:
        result, ran = (job if number == job.rank.rank else of_rank(number)), hot(number)
        by = "device_us" if len(ran.links.device_rows) else "host_us"
        figures = _figures_of_result(result.to_dict())
        for row in range_rows(ran.ranges):
            if row["kind"] == "module":
                figures[MODULE, row["name"].partition(": ")[2]] = row[by]
        return figures | {(PLACE, r["name"].strip("/")): r[by] for r in range_rows(ran.modules)}

    job, ranks = of_rank(None), {}
    for rank in job.ranks:
        rows = np.flatnonzero(marks.rank == rank.rank)[steady].tolist()
        work = DeviceWork.of(timeline, rank.rank)
        accounts = [account(work, *step_bounds(timeline, row)) for row in rows]
        columns = {_short(key): [getattr(each, key) for each in accounts] for key in STEP_KEYS}
        medians = {_short(key): float(getattr(rank, key)) for key in STEP_KEYS}
        events, links = recorded[rank.rank]
        memory = shown_timelines(memory_timelines(events, links.steps))
        peak = max((float(each.allocated_bytes.max()) for each in memory), default=None)
        ranks[rank.rank] = RankSteps(medians, _scatters(columns), peak)
    return Side(
        trace.source,
        trace.device,
        job.rank.rank,
        ranks,
        figures_of,
        work_of=work_of,
        is_window=any(links.steps.is_window for links in trace.links),
        gaps=completeness(trace, timeline.graph),
    )


def _short(key: str) -> str:
    """`step_us` as `step`."""
    return key.removesuffix("_us")


def _scatters(columns: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """By which share of their median the values of each column scatter; none of fewer than two,
    and around 0."""
    found = {}
    for name, values in columns.items():
        middle = median(np.asarray(values, float)) if len(values) > 1 else 0.0
        if middle and len(values) < FEW_STEPS:
            found[name] = float(np.ptp(values)) / 2 / middle
        elif middle:
            found[name] = DEVIATION * median(np.abs(np.asarray(values) - middle)) / middle
    return found


def _stored_side(path: Path, max_bytes: int) -> Side | None:
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
        by_rank, about, hardware = _READERS[kind](answer)
        return Side(
            str(path),
            hardware,
            *by_rank,
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


_Answer = Mapping[str, Any]
_ByRank = tuple[int, Mapping[int, RankSteps], Callable[[int], Figures]]
_Read = tuple[_ByRank, object, str]
"""Of a stored answer: slowest rank, ranks and their figures, what it says of its input, and its
hardware."""


def _figures_of_result(result: _Answer) -> dict[tuple[str, str], float]:
    figures: defaultdict[tuple[str, str], float] = defaultdict(float)
    for key in STEP_KEYS:
        figures[STEP, _short(key)] = _number(result, key)
    for piece in result["critical_path"]:
        for group, name in ((PATH, "kind"), (PIECE, "name")):
            figures[group, _text(piece, name)] += _number(piece, "duration_us")
    for family in result["families"]:
        figures[FAMILY, _text(family, "family")] = _number(family, "time_us")
    return dict(figures)


def _ranks_of_result(result: _Answer) -> _ByRank:
    figures = _figures_of_result(result)
    found = {
        int(_number(row, "rank")): {_short(key): _number(row, key) for key in STEP_KEYS}
        for row in result["per_rank"]
    }
    slowest = next((n for n, us in found.items() if us[STEP] == figures[STEP, STEP]), 0)
    found.setdefault(slowest, {name: us for (group, name), us in figures.items() if group == STEP})
    memory = (result.get("memory") or {}).get("total_bytes")
    steps = [step for step in result["steps"] if step["role"] == StepRole.STEADY]
    spread = _scatters({STEP: [_number(step, "step_us") for step in steps]})
    ranks = {
        rank: RankSteps(medians, *((spread, memory) if rank == slowest else ({}, None)))
        for rank, medians in found.items()
    }
    return slowest, ranks, lambda rank: figures | {(STEP, k): us for k, us in found[rank].items()}


def _prediction(answer: _Answer) -> _Read:
    result, source = answer["results"][0], answer["source"]
    keys = ("trace", "device", "ranks", "implementation", "batch", "training", "edits")
    about = [{key: source.get(key) for key in keys}, _text(result, "mode")]
    return _ranks_of_result(result), about, _text(result, "hardware")


def _breakdown(answer: _Answer) -> _Read:
    """Means over the steady steps."""
    steps = {
        int(_number(rank, "rank")): [s for s in rank["steps"] if s["role"] == StepRole.STEADY]
        or rank["steps"]
        for rank in answer["ranks"]
    }
    summaries, found = {each["rank"]: each for each in answer["summary"]}, {}
    for (number, own), rank in zip(steps.items(), answer["ranks"], strict=True):
        known = [key for key in STEP_KEYS if key in summaries[number]]
        means = {_short(key): _number(summaries[number], key) for key in known}
        columns = {_short(key): [_number(step, key) for step in own] for key in known}
        gpus = [each for each in rank["memory"] if each["device"] != "cpu"] or rank["memory"]
        peaks = [_number(each, "peak_allocated_bytes") for each in gpus]
        found[number] = RankSteps(means, _scatters(columns), max(peaks, default=None))

    def figures_of(number: int) -> Figures:
        figures: defaultdict[tuple[str, str], float] = defaultdict(float)
        figures |= {(STEP, name): us for name, us in found[number].medians_us.items()}
        for step in steps[number]:
            for group, key in ((PATH, "critical_path_by_kind"), (IDLE, "idle_by_cause")):
                for name in step[key]:
                    figures[group, name] += _number(step[key], name) / len(steps[number])
        return dict(figures)

    about = [[rank["rank"], [s["name"] for s in rank["steps"]]] for rank in answer["ranks"]]
    by_rank = answer["slowest_rank"], found, figures_of
    return by_rank, about, _text(answer["ranks"][0], "device")


def _without_ranks(answer: _Answer) -> _Read:
    """Of a comparison the step of each design that can be; of a plan the step as scheduled, and
    what the search made of it."""
    if "designs" in answer:
        rows = [row for row in answer["designs"] if row["feasible"]]
        figures = {_text(row, "design"): _number(row, "step_us") for row in rows}
    else:
        figures = {_short(k): _number(answer, k) for k in ("step_us", "surrogate_us", "bound_us")}
    keys = ("workload", "batch", "devices", "ranks", "training", "rate_per_s", "estimator")
    about = {key: answer.get(key) for key in keys}
    steps = {(STEP, name): us for name, us in figures.items()}
    return (0, {0: RankSteps(figures, {})}, lambda _: steps), about, _text(answer, "hardware")


_READERS: Mapping[str, Callable[[_Answer], _Read]] = {
    "prediction": _prediction,
    "breakdown": _breakdown,
    "compare": _without_ranks,
    "plan": _without_ranks,
}


def _number(holder: _Answer, key: str) -> float:
    value = holder[key]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value):
        raise ValueError(f"{key} is {str(value)[:40]!r}; expected a number")
    return value


def _text(holder: _Answer, key: str) -> str:
    value = holder[key]
    if not isinstance(value, str):
        raise ValueError(f"{key} is {str(value)[:40]!r}; expected a text")
    return value
