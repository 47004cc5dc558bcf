"""`perfmodel check`: prediction errors against a committed baseline."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import typer

from perfmodel.base.files import write_text
from perfmodel.cli.error_tables import show_check
from perfmodel.cli.evaluate import evaluate_paths
from perfmodel.cli.options import DEFAULT_MAX_GB, max_bytes
from perfmodel.cli.output import FAILED, STDOUT, Output, check_target, wrote
from perfmodel.errors import UsageError

TOLERANCE_FRAC = 0.05


def check(
    folders: list[str] | None = None,
    baseline: Path | None = None,
    update: bool = False,
    tolerance: float = TOLERANCE_FRAC,
    junit: Path | None = None,
    markdown: Path | None = None,
    steps_by: str | None = None,
    target: Output = STDOUT,
    strict: bool = False,
    max_memory: float = DEFAULT_MAX_GB,
) -> None:
    """Exit 1 where predictions became worse than a baseline."""
    if baseline is None:
        raise UsageError(
            "nothing to check against: give --baseline FILE; with --update it is written"
        )
    _check_places(baseline, update, [junit, markdown])

    from perfmodel.validate.evaluate.baseline import (
        check_tolerance,
        compare,
        read_baseline,
        write_baseline,
    )
    from perfmodel.validate.evaluate.baseline import junit as junit_text
    from perfmodel.validate.evaluate.baseline import markdown as markdown_text

    check_tolerance(tolerance)
    rows = None if update else read_baseline(baseline)
    evaluation = evaluate_paths(
        folders or [],
        strict=strict,
        limit_bytes=max_bytes(max_memory),
        steps_by=steps_by or "",
    )
    if rows is None:
        rows = evaluation.rows
        write_baseline(baseline, rows)
        wrote(baseline, "the baseline; commit it")
    held = compare(rows, evaluation, tolerance_frac=tolerance)
    if junit:
        write_text(junit, junit_text(held))
        wrote(junit, "JUnit XML, for the CI")
    if markdown:
        write_text(markdown, markdown_text(held))
        wrote(markdown, "Markdown, for a comment on the pull request")
    show = partial(show_check, baseline=str(baseline), written=update)
    target.write_result(held, show, held.warnings)
    if not held.passed:
        raise typer.Exit(FAILED)


def _check_places(baseline: Path, update: bool, reports: list[Path | None]) -> None:
    """Raise `PerfmodelError`, before any work, where a file cannot be written."""
    if update:
        from perfmodel.validate.evaluate.baseline import check_replaceable

        check_target(baseline)
        check_replaceable(baseline)
    for path in reports:
        if path:
            check_target(path)
