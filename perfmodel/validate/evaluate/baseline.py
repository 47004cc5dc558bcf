"""The errors that a repository keeps, and present ones against them: what got worse."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from xml.etree import ElementTree

import msgspec

from perfmodel.base.files import read_bytes, write_text
from perfmodel.errors import UsageError
from perfmodel.validate.evaluate.results import FIGURES, LEFT_OUT, NULLS, Evaluation, Kind, Row

if TYPE_CHECKING:
    import pandas as pd


SCHEMA = "perfmodel.baseline/1"
_FAMILY = SCHEMA.rpartition("/")[0]
_MAX_BYTES = 50_000_000


class _File(msgspec.Struct, forbid_unknown_fields=True):
    schema: str
    rows: Annotated[list[Row], msgspec.Meta(min_length=1)]


class _Head(msgspec.Struct):
    schema: str


_DAMAGES = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def read_baseline(path: Path) -> list[Row]:
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
        rows = msgspec.json.decode(content, type=_File).rows
    except _DAMAGES as error:
        raise UsageError(f"{path}: not a valid baseline: {error}") from None
    for key, count in Counter(row.key for row in rows).items():
        if count > 1:
            raise UsageError(f"{path}: not a valid baseline: {' '.join(key)} appears twice")
    return rows


def write_baseline(path: Path, rows: Iterable[Row]) -> None:
    """Write the rows, sorted, whole or not at all.

    Raises `UsageError` where a file at `path` is no baseline, of whatever version.
    """
    check_replaceable(path)
    ordered = sorted(rows, key=lambda row: (row.trace, list(Kind).index(row.kind), row.name))
    lines = ",\n".join(f"  {json.dumps(row.to_dict(), allow_nan=False)}" for row in ordered)
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

    def __repr__(self) -> str:
        return f"Comparison({len(self.changes)} figures, {len(self.failing)} worse or gone)"

    @property
    def failing(self) -> list[Change]:
        """What got worse or is gone, the largest growth first."""

        def growth(change: Change) -> float:
            if change.baseline is None or change.present is None or change.figure == COUNT:
                return math.inf
            return abs(change.present) - abs(change.baseline)

        return sorted((c for c in self.changes if c.fails), key=growth, reverse=True)

    @property
    def passed(self) -> bool:
        return not self.failing

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
            "changes": [c.to_dict() for c in self.changes if c.status is not Status.SAME],
            "warnings": self.warnings,
        }

    def to_frame(self) -> pd.DataFrame:
        import pandas as pd

        columns = [f.name for f in fields(Change)]
        return pd.DataFrame([change.to_dict() for change in self.changes], columns=columns)


def compare(baseline: Sequence[Row], present: Evaluation, *, tolerance_frac: float) -> Comparison:
    """Hold the present errors against those of a baseline.

    A figure is worse where its size is above the baseline's by more than `tolerance_frac` of it
    and `FLOOR_PCT` percentage points, and where it is of fewer steps than it was; one of a null
    model never is. Raises `UsageError` where a trace of the baseline is not among the present ones.
    """
    check_tolerance(tolerance_frac)
    now = {row.key: row for row in present.rows}
    then = {row.key: row for row in baseline}
    known = {row.trace for row in baseline}
    if gone := sorted(known - present.names):
        why = [text for text in present.warnings if text.startswith(LEFT_OUT)]
        raise UsageError(
            f"the baseline holds {', '.join(gone)}, which {'is' if len(gone) == 1 else 'are'} not "
            f"among the traces{f' ({why[0]})' if why else ''}: give the folder that it was made "
            "from, or rewrite it with `perfmodel check --update`"
        )
    changes = [
        change
        for key in sorted({*then, *now})
        for change in _changes(then.get(key), now.get(key), tolerance_frac)
    ]
    new = sorted(present.names - known)
    notes = [f"{name}: not in the baseline yet: add it with --update" for name in new]
    return Comparison(tolerance_frac, changes, [*present.warnings, *notes])


def check_tolerance(tolerance_frac: float) -> None:
    """Raise `UsageError` where it is no share."""
    if not (math.isfinite(tolerance_frac) and tolerance_frac >= 0):
        raise UsageError(f"--tolerance {tolerance_frac}: expected a share such as 0.05, 0 or more")


def _changes(then: Row | None, now: Row | None, tolerance_frac: float) -> Iterator[Change]:
    row = now or then
    assert row is not None
    is_null = row.kind in NULLS
    for figure in FIGURES:
        old = None if then is None else float(getattr(then, figure))
        new = None if now is None else float(getattr(now, figure))
        limit, status = 1 + tolerance_frac, Status.SAME
        if old is None or new is None:
            status = Status.NEW if old is None else Status.GONE
        elif abs(new) > abs(old) * limit + FLOOR_PCT:
            status = Status.WORSE
        elif abs(old) > abs(new) * limit + FLOOR_PCT:
            status = Status.BETTER
        if is_null and status is not Status.SAME:
            status = Status.MOVED
        yield Change(*row.key, figure, status, old, new)
    if then and now and now.n < then.n and not is_null:
        yield Change(*row.key, COUNT, Status.WORSE, float(then.n), float(now.n))


_SUITE = "perfmodel check"


def junit(result: Comparison) -> str:
    """JUnit XML: a test case per trace, kind and name; what got worse is its failure."""
    by_case = groupby(result.changes, lambda change: (change.trace, change.kind, change.name))
    cases = [(key, list(changes)) for key, changes in by_case]
    failed = [any(change.fails for change in changes) for _, changes in cases]
    counts = {"name": _SUITE, "tests": str(len(cases)), "failures": str(sum(failed))}
    suites = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(suites, "testsuite", counts)
    for (key, changes), fails in zip(cases, failed, strict=True):
        trace, kind, name = map(_plain, key)
        case = ElementTree.SubElement(suite, "testcase", classname=trace, name=f"{kind} {name}")
        if fails:
            text = _plain(
                "; ".join(
                    f"{c.kind} {c.name} {c.figure} {figure_text(c, c.baseline)} -> "
                    f"{figure_text(c, c.present)} ({c.status.value})"
                    for c in changes
                    if c.fails
                )
            )
            ElementTree.SubElement(case, "failure", message=text).text = text
    ElementTree.indent(suites)
    body = ElementTree.tostring(suites, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{body}\n'


def markdown(result: Comparison) -> str:
    """Markdown: one sentence, and a table of what got worse, better or is new."""
    lines = [f"### {_SUITE}: {'passed' if result.passed else 'failed'}", "", verdict(result), ""]
    listed = [*result.failing, *result.of(Status.BETTER, Status.NEW)]
    if listed:
        lines += ["| trace | kind | name | figure | baseline | now | |", "|---" * 7 + "|"]
        for change in listed:
            sizes = (figure_text(change, change.baseline), figure_text(change, change.present))
            cells = (change.trace, change.kind, change.name, change.figure, *sizes, change.status)
            texts = (_plain(str(cell)).replace("|", "\\|") for cell in cells)
            lines.append(f"| {' | '.join(texts)} |")
        lines.append("")
    lines += [f"- {_plain(text)}" for text in result.warnings]
    return "\n".join(lines).rstrip() + "\n"


def verdict(result: Comparison) -> str:
    """The outcome in one sentence."""
    if result.passed:
        return f"{extent(result)}: none is worse than the baseline."
    worse, gone = len(result.of(Status.WORSE)), len(result.of(Status.GONE))
    parts = [f"{worse} worse than the baseline"] * bool(worse) + [f"{gone} gone"] * bool(gone)
    return f"{extent(result)}: {', '.join(parts)}."


def extent(result: Comparison) -> str:
    """How much was compared."""
    traces = len({change.trace for change in result.changes})
    return f"{len(result.changes)} figures of {traces} trace{'' if traces == 1 else 's'}"


def figure_text(change: Change, value: float | None) -> str:
    """A figure as text: percent to two places, or a count."""
    if value is None:
        return "-"
    return f"{value:.0f}" if change.figure == COUNT else f"{value:.2f} %"


def _plain(text: str) -> str:
    """Without characters that XML forbids or that would break a line."""
    return "".join(c if c.isprintable() else "?" for c in text)
