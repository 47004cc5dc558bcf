"""What is compared: traces as measured, and predictions, made just now or stored, by rank."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.base.arrays import median
from perfmodel.base.files import DEFAULT_MAX_BYTES
from perfmodel.errors import UsageError
from perfmodel.prediction.breakdown.completeness import Gap, completeness
from perfmodel.prediction.result import summarise
from perfmodel.prediction.types import DEVICE_FIGURES, SCHEMA, Prediction, Result
from perfmodel.reporting.brief import sound, stored_answer
from perfmodel.reporting.tables import Record
from perfmodel.timeline.critical_path import DeviceWork, account
from perfmodel.timeline.graph import build_graph
from perfmodel.timeline.memory import memory_timelines, shown_timelines
from perfmodel.timeline.schedule import StepRole, measured, steady_steps, step_bounds
from perfmodel.trace import Trace, read

STEP, PATH, PIECE, FAMILY = GROUPS = ("step", "critical path", "on the path", "device")
"""What is compared: figures of the step; its critical path by kind, and by what lies on it; device
time by kernel family."""
MEMORY = "memory"
STEP_KEYS = {key.removesuffix("_us"): key for key in ("step_us", *DEVICE_FIGURES)}
"""Figures of the step, and what answers call them."""
FEW_STEPS = 5
"""Of fewer steps the scatter is half of their range; of more, outliers do not count."""
DEVIATION = 1.4826
"""Median absolute deviations in a standard deviation of normal values."""
Figures = Mapping[str, Mapping[str, float]]
"""Microseconds per step by group and name."""


@dataclass(frozen=True)
class RankSteps:
    """One rank's steps: their figures, and by which share of them steps scatter."""

    figures: Mapping[str, float]
    """Medians in microseconds by name (`step`, `gpu_active`, `comm`, ...), and `memory`: the peak
    in bytes of what its GPUs (without any, its host) allocated, where that was recorded."""
    scatter_frac: Mapping[str, float]
    """Of the names of which several steps are known."""

    @classmethod
    def of(cls, columns: Mapping[str, Sequence[float]]) -> RankSteps:
        """Of the values that figures have in each step."""
        middle = {name: median(np.asarray(values, float)) for name, values in columns.items()}
        return cls(middle, _scatters(columns))


@dataclass(frozen=True)
class Side:
    """One of the two: where it came from, and its figures."""

    source: str
    hardware: str
    rank: int
    """The one that stands for the job: the slowest."""
    ranks: Mapping[int, RankSteps]
    figures_of: Callable[[int], Figures]
    """All figures of a rank; of a prediction, which holds one rank's path and kernels, those."""
    made_by: Mapping[str, str] | None = None
    """Of a stored answer: version of the package, fingerprints of its data."""
    is_trace: bool = False
    is_window: bool = False
    """Of a trace: nothing marks steps, so that how much work is in one is anybody's guess."""
    gaps: Sequence[Gap] = ()
    """What the recording behind it cannot tell."""
    asked: Mapping[str, Any] = field(default_factory=dict)
    """Of a workload: the step that it is of."""


def side_of(
    source: str | Path | Trace | Prediction | Record,
    *,
    max_bytes: int = DEFAULT_MAX_BYTES,
    steps_by: str = "",
) -> Side:
    """A trace as it was measured, or the first result of a prediction, or what was stored of them:
    an answer, or the path of its JSON.

    Raises `TraceError` for what is none of them, `UsageError` for an answer that cannot be read.
    """
    if isinstance(source, Prediction):
        return _side_of_answer(source.to_dict(), str(source.source["trace"]))
    if isinstance(source, Trace):
        return _measured_side(source)
    if isinstance(source, Mapping):
        return _side_of_answer(source, "the answer")
    path = str(source)
    if stored := stored_answer(path, max_bytes):
        return _side_of_answer(stored, path)
    return replace(side_of(read(path, max_bytes=max_bytes, steps_by=steps_by)), source=path)


def _measured_side(trace: Trace) -> Side:
    """Raises `TraceError` where there is nothing to time."""
    timeline = measured(build_graph(trace))
    marks, steady = timeline.graph.marks, steady_steps(timeline)

    def of_rank(number: int | None) -> Result:
        return summarise(timeline, hardware=trace.device, mode="measured", rank=number)

    def figures_of(number: int) -> Figures:
        result = job if number == job.rank.rank else of_rank(number)
        return _figures_of_result(result.to_dict())

    job, ranks = of_rank(None), {}
    for rank in job.ranks:
        rows = np.flatnonzero(marks.rank == rank.rank)[steady].tolist()
        work = DeviceWork.of(timeline, rank.rank)
        accounts = [account(work, *step_bounds(timeline, row)) for row in rows]
        found = RankSteps.of(
            {name: [getattr(each, key) for each in accounts] for name, key in STEP_KEYS.items()}
        )
        events, links = trace.recorded[rank.rank]
        memory = shown_timelines(memory_timelines(events, links.steps))
        if memory:
            held = max(float(each.allocated_bytes.max()) for each in memory)
            found = replace(found, figures={**found.figures, MEMORY: held})
        ranks[rank.rank] = found
    return Side(
        trace.source,
        trace.device,
        job.rank.rank,
        ranks,
        figures_of,
        is_trace=True,
        is_window=any(links.steps.is_window for links in trace.links),
        gaps=completeness(trace, timeline.graph),
    )


def _scatters(columns: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """By which share of their median values scatter, by column; none of one, or around 0."""
    found = {}
    for name, values in columns.items():
        middle = median(np.asarray(values, float)) if len(values) > 1 else 0.0
        if middle and len(values) < FEW_STEPS:
            found[name] = float(np.ptp(values)) / 2 / middle
        elif middle:
            found[name] = DEVIATION * median(np.abs(np.asarray(values) - middle)) / middle
    return found


def _side_of_answer(answer: Record, source: str) -> Side:
    """Raises `UsageError` for an answer without times of steps, and for a damaged one."""
    schema = answer["schema"]
    if schema not in _SIDES:
        known = ", ".join(_SIDES)
        raise UsageError(f"{source}: {schema}: diff compares traces and {known}")
    with sound(schema, source):
        return replace(
            _SIDES[schema](answer),
            source=source,
            made_by={key: _text(answer["made_by"], key) for key in answer.get("made_by", ())},
            gaps=[
                Gap(_text(each, "what"), tuple(map(str, each["touches"])))
                for each in answer.get("completeness", ())
            ],
        )


def _step_figures(holder: Record) -> dict[str, float]:
    return {name: _number(holder, key) for name, key in STEP_KEYS.items()}


def _figures_of_result(result: Record) -> dict[str, Mapping[str, float]]:
    path, pieces, families = (defaultdict[str, float](float) for _ in range(3))
    for piece in result["critical_path"]:
        for sums, name in ((path, "kind"), (pieces, "name")):
            sums[_text(piece, name)] += _number(piece, "duration_us")
    for family in result["families"]:
        families[_text(family, "family")] += _number(family, "time_us")
    return {STEP: _step_figures(result), PATH: path, PIECE: pieces, FAMILY: families}


def _predicted_side(answer: Record) -> Side:
    result = answer["results"][0]
    figures = _figures_of_result(result)
    step = figures[STEP]
    found = {int(_number(row, "rank")): _step_figures(row) for row in result["per_rank"]}
    slowest = next((rank for rank, of in found.items() if of[STEP] == step[STEP]), 0)
    found.setdefault(slowest, dict(step))
    steps = [each for each in result["steps"] if each["role"] == StepRole.STEADY]
    spread = _scatters({STEP: [_number(each, "step_us") for each in steps]})
    ranks = {rank: RankSteps(of, spread if rank == slowest else {}) for rank, of in found.items()}
    if result.get("memory"):
        held = {MEMORY: _number(result["memory"], "total_bytes")}
        ranks[slowest] = replace(ranks[slowest], figures=found[slowest] | held)
    about = answer["source"] if "workload" in answer["source"] else {}
    asked = {key: about[key] for key in ("workload", "batch", "training") if key in about}

    def figures_of(rank: int) -> Figures:
        return figures | {STEP: found[rank]}

    return Side("", _text(result, "hardware"), slowest, ranks, figures_of, asked=asked)


def _broken_down_side(answer: Record) -> Side:
    """A measured job from its breakdown: by rank its steady steps, and the median one's path."""
    ranks, paths = dict[int, RankSteps](), dict[int, Figures]()
    device = _text(answer["ranks"][0], "device")
    for rank in answer["ranks"]:
        every, number = rank["steps"], int(_number(rank, "rank"))
        steps = [each for each in every if each["role"] == StepRole.STEADY] or every
        columns = {name: [_number(each, key) for each in steps] for name, key in STEP_KEYS.items()}
        ranks[number] = RankSteps.of(columns)
        middle = ranks[number].figures
        path = min(steps, key=lambda each: abs(each["step_us"] - middle[STEP]))
        by_kind = path["critical_path_by_kind"]
        paths[number] = {STEP: middle, PATH: {kind: _number(by_kind, kind) for kind in by_kind}}
    slowest = max(ranks, key=lambda number: ranks[number].figures[STEP])
    return Side("", device, slowest, ranks, paths.__getitem__, is_trace=True)


_SIDES: Mapping[str, Callable[[Record], Side]] = {
    SCHEMA: _predicted_side,
    "perfmodel.breakdown/1": _broken_down_side,
}
"""By schema, of which no constant is imported here: it would load what makes such an answer."""


def _number(holder: Record, key: str) -> float:
    value = holder[key]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value):
        raise ValueError(f"{key} is {str(value)[:40]!r}; expected a number")
    return value


def _text(holder: Record, key: str) -> str:
    if not isinstance(value := holder[key], str):
        raise ValueError(f"{key} is {str(value)[:40]!r}; expected a text")
    return value
