"""Two traces or predictions side by side: what became slower, and why."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.errors import UsageError
from perfmodel.files import DEFAULT_MAX_BYTES
from perfmodel.frames import is_frame
from perfmodel.graph import build_graph
from perfmodel.prediction.result import summarise
from perfmodel.prediction.types import Prediction
from perfmodel.reporting.stored import GROUPS, MEASURED, STEP, Side, figures_of_result, stored_side
from perfmodel.timeline.schedule import measured
from perfmodel.trace import Trace, read
from perfmodel.units import human_us

if TYPE_CHECKING:
    import pandas as pd


SCHEMA = "perfmodel.diff/1"
_ALIKE = (MEASURED, "prediction")
"""Kinds of answers with the same figures."""
_SAME_INPUT = "same input as far as they say"
"""Of what-ifs and settings of a workload they do not."""
MOST_SHOWN = 12
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
            for change in self.of(group)[:MOST_SHOWN]
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
    source: str | Path | Trace | Prediction | pd.DataFrame, *, max_bytes: int = DEFAULT_MAX_BYTES
) -> Side:
    """A trace (or a frame of its events) as it was measured, the first result of a prediction, or a
    stored answer's JSON.

    Raises `TraceError` for what is none of them, `UsageError` for an answer that cannot be read.
    """
    if is_frame(source):
        source = read(source)
    if isinstance(source, Prediction):
        result = source.results[0].to_dict()
        return Side(str(source.source["trace"]), result["hardware"], figures_of_result(result))
    if isinstance(source, Trace):
        side = summarise(measured(build_graph(source)), hardware=source.device, mode="measured")
        return Side(source.source, source.device, figures_of_result(side.to_dict()))
    path = str(source)
    stored = stored_side(Path(path), max_bytes)
    return stored or replace(side_of(read(path, max_bytes=max_bytes)), source=path)


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
