"""The errors that a repository keeps, and present ones against them: what got worse."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from perfmodel.base.files import read_bytes, write_text
from perfmodel.base.units import counted
from perfmodel.errors import UsageError
from perfmodel.reporting.tables import one_line
from perfmodel.validate.evaluate.results import FIGURES, LEFT_OUT, Errors, Kind

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "perfmodel.baseline/2"
_FAMILY = SCHEMA.rpartition("/")[0]
_MAX_BYTES = 50_000_000
_Size = Annotated[float, msgspec.Meta(ge=0)]
Row = Mapping[str, Any]
"""A row of `evaluate_jobs`."""


class _Row(msgspec.Struct, forbid_unknown_fields=True):
    trace: str
    kind: Kind
    name: str
    n: Annotated[int, msgspec.Meta(ge=1)]
    mape_pct: _Size
    median_pct: _Size
    worst_pct: _Size
    bias_pct: float


class _File(msgspec.Struct, forbid_unknown_fields=True):
    schema: str
    rows: Annotated[list[_Row], msgspec.Meta(min_length=1)]


class _Head(msgspec.Struct):
    schema: str


_DAMAGES = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def key_of(row: Row) -> tuple[str, str, str]:
    """What tells rows apart."""
    return row["trace"], row["kind"], row["name"]


def read_baseline(path: Path) -> list[dict[str, Any]]:
    """The rows of a baseline.

    Raises `UsageError` naming the file and what is wrong: no baseline, one of another version,
    an unknown or missing key, a figure that is none, or a row that stands twice.
    """
    content = read_bytes(path, max_bytes=_MAX_BYTES)
    schema = _schema(content, path)
    if schema != SCHEMA:
        raise UsageError(
            f"{path}: is a {schema}, and this version reads {SCHEMA}: "
            "rewrite it with `perfmodel check --update`"
        )
    try:
        rows = msgspec.to_builtins(msgspec.json.decode(content, type=_File).rows)
    except _DAMAGES as error:
        raise UsageError(f"{path}: not a valid baseline: {error}") from None
    for key, count in Counter(map(key_of, rows)).items():
        if count > 1:
            raise UsageError(f"{path}: not a valid baseline: {' '.join(key)} appears twice")
    return list(rows)


def write_baseline(path: Path, rows: Iterable[Row]) -> None:
    """Write the rows, sorted, whole or not at all.

    Raises `UsageError` where a file at `path` is no baseline, of whatever version.
    """
    check_replaceable(path)
    order = list(Kind)
    ordered = sorted(rows, key=lambda row: (row["trace"], order.index(row["kind"]), row["name"]))
    lines = ",\n".join(f"  {json.dumps(row, allow_nan=False)}" for row in ordered)
    content = f'{{\n"schema": "{SCHEMA}",\n"rows": [\n{lines}\n]\n}}\n'
    write_text(path, content, updates=True)


def check_replaceable(path: Path) -> None:
    """Raise `UsageError` where `--update` would overwrite something that is no baseline."""
    if path.exists():
        _schema(read_bytes(path, max_bytes=_MAX_BYTES), path)


def _schema(content: bytes, path: Path) -> str:
    try:
        schema = msgspec.json.decode(content, type=_Head).schema
    except _DAMAGES as error:
        raise UsageError(f"{path}: not a baseline: {error}") from None
    if schema.rpartition("/")[0] != _FAMILY:
        raise UsageError(f"{path}: not a baseline, but {schema!r}")
    return schema


CHECK_SCHEMA = "perfmodel.check/1"
FLOOR_PCT = 0.02
"""Percentage points that any figure may grow: errors near 0 have no relative size."""
COUNT = "n"


class Status(StrEnum):
    """What became of a figure."""

    WORSE = "worse"
    GONE = "gone"
    """The baseline holds it, and nothing measures it now."""
    BETTER = "better"
    NEW = "new"
    SAME = "same"
    MOVED = "moved"
    """Of a null model: the steps scatter otherwise than they did, which fails nothing."""


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

    def text(self, value: float | None) -> str:
        if value is None:
            return "-"
        return f"{value:.0f}" if self.figure == COUNT else f"{value:.2f} %"


@dataclass(frozen=True)
class Comparison:
    """Every figure of a baseline and of now."""

    tolerance_frac: float
    changes: list[Change]
    warnings: list[str]

    def __repr__(self) -> str:
        return f"Comparison({len(self.changes)} figures, {len(self.failing)} worse or gone)"

    @property
    def failing(self) -> list[Change]:
        """What got worse or is gone, the largest growth first."""

        def growth(change: Change) -> float:
            if change.baseline is None or change.present is None or change.figure == COUNT:
                return math.inf
            return abs(change.present) - abs(change.baseline)

        return sorted(self.of(Status.WORSE, Status.GONE), key=growth, reverse=True)

    @property
    def passed(self) -> bool:
        return not self.failing

    @property
    def extent(self) -> str:
        traces = {change.trace for change in self.changes}
        return f"{len(self.changes)} figures of {counted(len(traces), 'trace')}"

    @property
    def verdict(self) -> str:
        """The outcome in one sentence."""
        if self.passed:
            return f"{self.extent}: none is worse than the baseline."
        worse, gone = len(self.of(Status.WORSE)), len(self.of(Status.GONE))
        parts = [f"{worse} worse than the baseline"] * bool(worse) + [f"{gone} gone"] * bool(gone)
        return f"{self.extent}: {', '.join(parts)}."

    def of(self, *statuses: Status) -> list[Change]:
        return [change for change in self.changes if change.status in statuses]

    def to_dict(self) -> dict[str, Any]:
        """The answer as `docs/schemas/check.json` describes it; figures that are as they were are
        counted only."""
        return {
            "schema": CHECK_SCHEMA,
            "passed": self.passed,
            "tolerance_frac": self.tolerance_frac,
            "floor_pct": FLOOR_PCT,
            "figures": len(self.changes),
            "changes": [asdict(c) for c in self.changes if c.status is not Status.SAME],
            "warnings": self.warnings,
        }

    def to_frame(self) -> pd.DataFrame:
        import pandas as pd

        return pd.DataFrame(self.changes)


def compare(baseline: Sequence[Row], present: Errors, *, tolerance_frac: float) -> Comparison:
    """Hold the present errors against those of a baseline.

    A figure is worse where its size is above the baseline's by more than `tolerance_frac` of it
    and `FLOOR_PCT` percentage points, and where it is of fewer steps than it was; one of a null
    model never is. Raises `UsageError` where a trace of the baseline is not among the present ones.
    """
    check_tolerance(tolerance_frac)
    then, now = ({key_of(row): row for row in rows} for rows in (baseline, present.rows))
    known, names = {row["trace"] for row in baseline}, {row["trace"] for row in present.rows}
    if gone := sorted(known - names):
        why = [text for text in present.warnings if text.startswith(LEFT_OUT)]
        raise UsageError(
            f"the baseline holds {', '.join(gone)}, which {'is' if len(gone) == 1 else 'are'} not "
            f"among the traces{f' ({why[0]})' if why else ''}: give the folder that it was made "
            "from, or rewrite it with `perfmodel check --update`"
        )
    changes = [
        change
        for key in sorted({*then, *now})
        for change in _changes(key, then.get(key), now.get(key), tolerance_frac)
    ]
    notes = [f"{name}: not in the baseline yet: add it with --update" for name in names - known]
    return Comparison(tolerance_frac, changes, [*present.warnings, *sorted(notes)])


def check_tolerance(tolerance_frac: float) -> None:
    """Raise `UsageError` where it is no share."""
    if not (math.isfinite(tolerance_frac) and tolerance_frac >= 0):
        raise UsageError(f"--tolerance {tolerance_frac}: expected a share such as 0.05, 0 or more")


def _changes(
    key: tuple[str, str, str], then: Row | None, now: Row | None, tolerance_frac: float
) -> Iterator[Change]:
    is_null, limit = key[1] == Kind.NULL, 1 + tolerance_frac
    for figure in FIGURES:
        old, new = (None if row is None else float(row[figure]) for row in (then, now))
        status = Status.SAME
        if old is None or new is None:
            status = Status.NEW if old is None else Status.GONE
        elif abs(new) > abs(old) * limit + FLOOR_PCT:
            status = Status.WORSE
        elif abs(old) > abs(new) * limit + FLOOR_PCT:
            status = Status.BETTER
        if is_null and status is not Status.SAME:
            status = Status.MOVED
        yield Change(*key, figure, status, old, new)
    if then and now and now[COUNT] < then[COUNT] and not is_null:
        yield Change(*key, COUNT, Status.WORSE, float(then[COUNT]), float(now[COUNT]))


def markdown(result: Comparison) -> str:
    """Markdown: one sentence, and a table of what got worse, better or is new."""
    outcome = "passed" if result.passed else "failed"
    lines = [f"### perfmodel check: {outcome}", "", result.verdict, ""]
    listed = [*result.failing, *result.of(Status.BETTER, Status.NEW)]
    if listed:
        lines += ["| trace | kind | name | figure | baseline | now | |", "|---" * 7 + "|"]
        for change in listed:
            sizes = (change.text(change.baseline), change.text(change.present))
            cells = (change.trace, change.kind, change.name, change.figure, *sizes, change.status)
            texts = (one_line(str(cell)).replace("|", "\\|") for cell in cells)
            lines.append(f"| {' | '.join(texts)} |")
        lines.append("")
    lines += [f"- {one_line(text)}" for text in result.warnings]
    return "\n".join(lines).rstrip() + "\n"
