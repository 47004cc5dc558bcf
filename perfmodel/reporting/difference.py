"""Two traces or predictions side by side: what became slower, and why."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.errors import UsageError
from perfmodel.files import DEFAULT_MAX_BYTES, read_bytes
from perfmodel.frames import is_frame
from perfmodel.graph import build_graph
from perfmodel.prediction.result import summarise
from perfmodel.prediction.types import DEVICE_FIGURES, Prediction
from perfmodel.prediction.types import SCHEMA as PREDICTION
from perfmodel.timeline.schedule import measured
from perfmodel.trace import Trace, read
from perfmodel.units import human_us

if TYPE_CHECKING:
    import pandas as pd


SCHEMA = "perfmodel.diff/1"
STEP, PATH, PIECE, FAMILY = GROUPS = ("step", "critical path", "on the path", "device")
"""What is compared: figures of the step; its critical path by kind, and by what lies on it; device
time by kernel family."""

MOST_SHOWN = 12
"""Changes of each group, for people."""


@dataclass(frozen=True)
class Side:
    """One of the two: where it came from, and microseconds per step by (group, name)."""

    source: str
    hardware: str
    figures: Mapping[tuple[str, str], float]


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
            for change in self.of(group)[:MOST_SHOWN]
            if change.a_us or change.b_us
        ]
        return table_html(rows, columns, f"{self.a.source} against {self.b.source}")

    def to_dict(self) -> dict[str, Any]:
        """The answer as `docs/schemas/diff.json` describes it."""
        return {
            "schema": SCHEMA,
            **{
                key: {"source": side.source, "hardware": side.hardware}
                for key, side in (("a", self.a), ("b", self.b))
            },
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
    source: str | Path | Trace | Prediction | pd.DataFrame, *, max_bytes: int = DEFAULT_MAX_BYTES
) -> Side:
    """A trace (or a frame of its events) as it was measured, or the first result of a prediction
    (itself, or its JSON).

    Raises `TraceError` for what is neither, `UsageError` for a prediction without a result.
    """
    if is_frame(source):
        source = read(source)
    if isinstance(source, Prediction):
        return _side(str(source.source["trace"]), source.results[0].to_dict())
    if isinstance(source, Trace):
        side = summarise(measured(build_graph(source)), hardware=source.device, mode="measured")
        return _side(source.source, side.to_dict())
    path = str(source)
    saved = _saved_prediction(Path(path), max_bytes)
    if saved is None:
        return replace(side_of(read(path, max_bytes=max_bytes)), source=path)
    try:
        return _side(path, saved["results"][0])
    except (KeyError, IndexError) as error:
        raise UsageError(f"{path}: not a sound {PREDICTION}: no {error}") from None
    except (TypeError, ValueError) as error:
        raise UsageError(f"{path}: not a sound {PREDICTION}: {error}") from None


def difference(a: Side, b: Side) -> Difference:
    """What differs between `a` and `b`."""
    names = dict.fromkeys([*a.figures, *b.figures])
    changes = [
        Change(group, name, a.figures.get((group, name), 0.0), b.figures.get((group, name), 0.0))
        for group, name in names
    ]
    changes.sort(key=lambda change: (GROUPS.index(change.group), -abs(change.change_us)))
    return Difference(a, b, changes)


def _saved_prediction(path: Path, max_bytes: int) -> dict[str, Any] | None:
    """The JSON of `perfmodel predict` at `path`, or None where it is something else."""
    if path.suffix.lower() != ".json" or not path.is_file():
        return None
    head = f'"schema": "{PREDICTION}"'.encode()
    content = read_bytes(path, max_bytes=max_bytes)
    if head not in content[: 2 * len(head)]:
        return None
    try:
        loaded = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not a sound {PREDICTION}: {error}") from None
    return loaded if isinstance(loaded, dict) else None


def _side(source: str, result: Mapping[str, Any]) -> Side:
    """Raises `KeyError`, `TypeError` or `ValueError` where `result` is none."""
    figures: defaultdict[tuple[str, str], float] = defaultdict(float)
    for key in ("step_us", *DEVICE_FIGURES):
        figures[STEP, key.removesuffix("_us")] = _time_us(result, key)
    for piece in result["critical_path"]:
        for group, name in ((PATH, "kind"), (PIECE, "name")):
            figures[group, _text(piece, name)] += _time_us(piece, "duration_us")
    for family in result["families"]:
        figures[FAMILY, _text(family, "family")] = _time_us(family, "time_us")
    return Side(source, _text(result, "hardware"), dict(figures))


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
