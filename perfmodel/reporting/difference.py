"""Two traces, predictions or stored answers side by side: what became slower, and why."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel import __version__
from perfmodel.errors import UsageError
from perfmodel.files import DEFAULT_MAX_BYTES, read_bytes
from perfmodel.frames import is_frame
from perfmodel.graph import build_graph
from perfmodel.prediction.result import summarise
from perfmodel.prediction.types import DEVICE_FIGURES, Prediction
from perfmodel.timeline.schedule import measured
from perfmodel.trace import Trace, read
from perfmodel.units import human_us

if TYPE_CHECKING:
    import pandas as pd


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
    """Of the slowest rank: means over the steady steps."""
    number = answer["slowest_rank"]
    summary = next(each for each in answer["summary"] if each["rank"] == number)
    rank = next(each for each in answer["ranks"] if each["rank"] == number)
    figures: defaultdict[tuple[str, str], float] = defaultdict(float)
    for key in _STEP_KEYS:
        if key in summary:
            figures[STEP, key.removesuffix("_us")] = _time_us(summary, key)
    steps = [step for step in rank["steps"] if step["role"] == "steady"] or rank["steps"]
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


SCHEMA = "perfmodel.diff/1"
_ALIKE = (MEASURED, "prediction")
"""Kinds of answers with the same figures."""
_SAME_INPUT = "same input as far as they say"
"""Of what-ifs and settings of a workload they do not."""
MAX_SHOWN = 12
"""Changes of each group, for people."""


@dataclass(frozen=True)
class Change:
    """One figure on both sides, in microseconds per step; 0 where a side has none."""

    group: str
    name: str
    a_us: float
    b_us: float

    @property
    def change_us(self) -> float:
        return self.b_us - self.a_us


@dataclass(frozen=True)
class Difference:
    """Every figure that differs, the largest change first within its group."""

    a: Side
    b: Side
    changes: list[Change]

    def of(self, group: str) -> list[Change]:
        """The changes of one group."""
        return [change for change in self.changes if change.group == group]

    @property
    def same_input(self) -> bool | None:
        """Whether two stored answers are of one input, as far as they say; else None."""
        known = self.a.about is not None and self.b.about is not None
        return self.a.about == self.b.about if known else None

    @property
    def tool_changed(self) -> list[str] | None:
        """What of the tool differs between two stored answers; None where one does not say."""
        a, b = self.a.made_by, self.b.made_by
        if a is None or b is None:
            return None
        return [key for key in dict.fromkeys([*a, *b]) if a.get(key) != b.get(key)]

    @property
    def remark(self) -> str | None:
        """Whether the input or the tool moved what differs; None unless both are stored answers."""
        if self.same_input is None:
            return None
        of_input = _SAME_INPUT if self.same_input else "the inputs differ"
        if self.tool_changed is None:
            silent = next(side.source for side in (self.a, self.b) if side.made_by is None)
            return f"{of_input}; {silent} does not say what made it: it is of an older release"
        if not self.tool_changed:
            is_moved = self.same_input and any(change.change_us for change in self.changes)
            return f"{of_input}, same tool" + (": what differs was asked otherwise" * is_moved)
        changes = [_tool_change(self.a, self.b, key) for key in self.tool_changed]
        moved = (
            ": what differs is the tool's doing, or was asked otherwise"
            if self.same_input
            else ", and so does the tool"
        )
        return f"{of_input}{moved} ({', '.join(changes)})"

    def __repr__(self) -> str:
        steps = ", ".join(
            f"{human_us(change.a_us)} to {human_us(change.b_us)}"
            for change in self.of(STEP)
            if change.name == STEP
        )
        return f"Difference({self.a.source!r}, {self.b.source!r}: step {steps})"

    def _repr_html_(self) -> str:
        """The largest changes of each group."""
        from perfmodel.plot import table_html

        columns = ["group", "name", "a_us", "b_us", "change_us"]
        rows = [
            [*asdict(change).values(), change.change_us]
            for group in GROUPS
            for change in self.of(group)[:MAX_SHOWN]
            if change.a_us or change.b_us
        ]
        return table_html(rows, columns, f"{self.a.source} against {self.b.source}")

    def to_dict(self) -> dict[str, Any]:
        """The answer as `docs/schemas/diff.json` describes it."""
        return {
            "schema": SCHEMA,
            **{
                key: {"source": side.source, "hardware": side.hardware, "made_by": side.made_by}
                for key, side in (("a", self.a), ("b", self.b))
            },
            "same_input": self.same_input,
            "tool_changed": self.tool_changed,
            "remark": self.remark,
            "changes": [
                {key: round(v, 4) if isinstance(v, float) else v for key, v in row.items()}
                for row in self._rows()
            ],
        }

    def to_frame(self) -> pd.DataFrame:
        """One row per figure."""
        import pandas as pd

        return pd.DataFrame(self._rows(), columns=["group", "name", "a_us", "b_us", "change_us"])

    def _rows(self) -> list[dict[str, Any]]:
        return [asdict(change) | {"change_us": change.change_us} for change in self.changes]


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
        return Side(str(source.source["trace"]), result["hardware"], figures_of_result(result))
    if isinstance(source, Trace):
        side = summarise(measured(build_graph(source)), hardware=source.device, mode="measured")
        return Side(source.source, source.device, figures_of_result(side.to_dict()))
    path = str(source)
    if stored := stored_side(Path(path), max_bytes):
        return stored
    trace = read(path, max_bytes=max_bytes, steps_by=steps_by)
    return replace(side_of(trace), source=path)


def difference(a: Side, b: Side) -> Difference:
    """What differs between `a` and `b`. Raises `UsageError` where they have no figure in common."""
    if a.kind != b.kind and not {a.kind, b.kind} <= set(_ALIKE):
        raise UsageError(
            f"{a.source} is a {a.kind}, {b.source} a {b.kind}: they have no figures in common"
        )
    names = dict.fromkeys([*a.figures, *b.figures])
    changes = [
        Change(group, name, a.figures.get((group, name), 0.0), b.figures.get((group, name), 0.0))
        for group, name in names
    ]
    changes.sort(key=lambda change: (GROUPS.index(change.group), -abs(change.change_us)))
    return Difference(a, b, changes)


def _tool_change(a: Side, b: Side, key: str) -> str:
    """`perfmodel 0.1.0 to 0.2.0`, `models 12ab to 34cd`."""
    before, after = ((side.made_by or {}).get(key, "none") for side in (a, b))
    return f"{key.replace('_', ' ')} {before} to {after}"
