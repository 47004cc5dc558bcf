"""`perfmodel check`: prediction errors against a committed baseline."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import typer

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
    from perfmodel.validate.evaluate import baseline as held_by

    if update:
        check_target(baseline)
        held_by.check_replaceable(baseline)
    check_target(junit, markdown)
    held_by.check_tolerance(tolerance)
    rows = None if update else held_by.read_baseline(baseline)
    limit = max_bytes(max_memory)
    evaluation = evaluate_paths(
        folders or [], strict=strict, limit_bytes=limit, steps_by=steps_by or ""
    )
    if rows is None:
        rows = evaluation.rows
        held_by.write_baseline(baseline, rows)
        wrote(baseline, "the baseline; commit it")
    held = held_by.compare(rows, evaluation, tolerance_frac=tolerance)
    if junit:
        wrote(junit, "JUnit XML, for the CI", held_by.junit(held))
    if markdown:
        wrote(markdown, "Markdown, for a comment on the pull request", held_by.markdown(held))
    show = partial(show_check, baseline=str(baseline), written=update)
    target.write_result(held, show, held.warnings)
    if not held.passed:
        raise typer.Exit(FAILED)
