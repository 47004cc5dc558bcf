"""Present errors against a baseline: what got worse, and by how much."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from perfmodel.errors import UsageError
from perfmodel.validate.types import FIGURES, LEFT_OUT, Evaluation, Row

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "perfmodel.check/1"
FLOOR_PCT = 0.02
"""Percentage points that a figure may grow whatever it was: errors near 0 have no relative size."""
COUNT = "n"


class Status(StrEnum):
    """What became of a figure."""

    WORSE = "worse"
    GONE = "gone"
    """The baseline holds it, and nothing measures it now."""
    BETTER = "better"
    NEW = "new"
    SAME = "same"


FAILING = (Status.WORSE, Status.GONE)


@dataclass(frozen=True)
class Change:
    """One figure then and now: percent, or a count where `figure` is `n`."""

    trace: str
    kind: str
    name: str
    figure: str
    status: Status
    baseline: float | None
    present: float | None

    @property
    def fails(self) -> bool:
        return self.status in FAILING

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"status": self.status.value}


@dataclass(frozen=True)
class Comparison:
    """Every figure of a baseline and of now."""

    tolerance_frac: float
    changes: list[Change]
    warnings: list[str]

    @property
    def failing(self) -> list[Change]:
        """What got worse or is gone, the largest growth first."""
        failing = [change for change in self.changes if change.fails]
        return sorted(failing, key=lambda change: -_growth(change))

    @property
    def passed(self) -> bool:
        return not self.failing

    def of(self, *statuses: Status) -> list[Change]:
        """The figures with one of `statuses`."""
        return [change for change in self.changes if change.status in statuses]

    def to_dict(self) -> dict[str, Any]:
        """The answer as `docs/schemas/check.json` describes it; figures that are as they were are
        counted only."""
        told = [c for c in self.changes if c.status is not Status.SAME]
        return {
            "schema": SCHEMA,
            "passed": self.passed,
            "tolerance_frac": self.tolerance_frac,
            "floor_pct": FLOOR_PCT,
            "figures": len(self.changes),
            "changes": [change.to_dict() for change in told],
            "warnings": self.warnings,
        }

    def to_frame(self) -> pd.DataFrame:
        """One row per figure."""
        import pandas as pd

        columns = [f.name for f in fields(Change)]
        return pd.DataFrame([change.to_dict() for change in self.changes], columns=columns)


def compare(baseline: Sequence[Row], present: Evaluation, *, tolerance_frac: float) -> Comparison:
    """Hold the present errors against those of a baseline.

    A figure is worse where its size is above the baseline's by more than `tolerance_frac` of it
    and `FLOOR_PCT` percentage points, and where it is of fewer steps than it was. Raises
    `UsageError` where a trace of the baseline is not among the present ones.
    """
    check_tolerance(tolerance_frac)
    now = {row.key: row for row in present.rows}
    _all_there({row.trace for row in baseline}, present)
    then = {row.key: row for row in baseline}
    changes = [
        change
        for key in sorted({*then, *now})
        for change in _changes(then.get(key), now.get(key), tolerance_frac)
    ]
    known = {row.trace for row in baseline}
    new = sorted(present.names - known)
    notes = [f"{name}: not in the baseline yet: add it with --update" for name in new]
    return Comparison(tolerance_frac, changes, [*present.warnings, *notes])


def check_tolerance(tolerance_frac: float) -> None:
    """Raise `UsageError` where it is no share."""
    if not (math.isfinite(tolerance_frac) and tolerance_frac >= 0):
        raise UsageError(f"--tolerance {tolerance_frac}: expected a share such as 0.05, 0 or more")


def _all_there(names: set[str], present: Evaluation) -> None:
    gone = sorted(names - present.names)
    if not gone:
        return
    why = [text for text in present.warnings if text.startswith(LEFT_OUT)]
    raise UsageError(
        f"the baseline holds {', '.join(gone)}, which {'is' if len(gone) == 1 else 'are'} not "
        f"among the traces{f' ({why[0]})' if why else ''}: give the folder that it was made "
        "from, or rewrite it with --update"
    )


def _changes(then: Row | None, now: Row | None, tolerance_frac: float) -> Iterator[Change]:
    row = now or then
    assert row is not None
    for figure in FIGURES:
        old = None if then is None else float(getattr(then, figure))
        new = None if now is None else float(getattr(now, figure))
        yield Change(*row.key, figure, _status(old, new, tolerance_frac), old, new)
    if then and now and now.n < then.n:
        yield Change(*row.key, COUNT, Status.WORSE, float(then.n), float(now.n))


def _status(old: float | None, new: float | None, tolerance_frac: float) -> Status:
    if old is None:
        return Status.NEW
    if new is None:
        return Status.GONE
    if _exceeds(new, old, tolerance_frac):
        return Status.WORSE
    return Status.BETTER if _exceeds(old, new, tolerance_frac) else Status.SAME


def _exceeds(one: float, other: float, tolerance_frac: float) -> bool:
    return not abs(one) <= abs(other) * (1 + tolerance_frac) + FLOOR_PCT


def _growth(change: Change) -> float:
    if change.baseline is None or change.present is None:
        return math.inf
    if change.figure == COUNT:
        return math.inf
    return abs(change.present) - abs(change.baseline)
