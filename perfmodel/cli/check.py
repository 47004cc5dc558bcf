"""`perfmodel check`: prediction errors against a committed baseline."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from perfmodel.cli.evaluate import evaluate_paths
from perfmodel.cli.options import (
    DEFAULT_MAX_GB,
    FormatOption,
    MaxMemoryOption,
    OutputOption,
    StepsByOption,
    StrictOption,
    max_bytes,
)
from perfmodel.cli.output import FAILED, Output, check_target, wrote
from perfmodel.errors import UsageError
from perfmodel.files import write_text

TOLERANCE_FRAC = 0.05


def check(
    folders: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FOLDER|TRACE...]",
            help="What the baseline was made from; without any, the folder `traces` here and the "
            "bundled demo.",
        ),
    ] = None,
    baseline: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The committed errors (required).")
    ] = None,
    update: Annotated[
        bool, typer.Option("--update", help="Write the present errors to the baseline instead.")
    ] = False,
    tolerance: Annotated[
        float,
        typer.Option(
            metavar="FRAC", help="Relative increase that a figure may have, on top of 0.02 points."
        ),
    ] = TOLERANCE_FRAC,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a JUnit XML report as well.")
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a Markdown summary as well.")
    ] = None,
    steps_by: StepsByOption = None,
    format: FormatOption = None,
    output: OutputOption = None,
    strict: StrictOption = False,
    max_memory: MaxMemoryOption = DEFAULT_MAX_GB,
) -> None:
    """Exit 1 where predictions became worse than a baseline.

    It says which, and by how much.

    \b
    Examples:
      perfmodel check --baseline traces/baseline.json
      perfmodel check --baseline errors.json my-traces/ --junit check.xml --markdown check.md
      perfmodel check --baseline traces/baseline.json --update
    """
    if baseline is None:
        raise UsageError(
            "nothing to check against: give --baseline FILE; with --update it is written"
        )
    target = Output(format, output)
    _check_places(baseline, update, [junit, markdown, output])

    from perfmodel.cli.error_tables import show_check
    from perfmodel.evaluation.baseline import (
        check_tolerance,
        compare,
        read_baseline,
        write_baseline,
    )
    from perfmodel.evaluation.baseline import junit as junit_text
    from perfmodel.evaluation.baseline import markdown as markdown_text

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
        from perfmodel.evaluation.baseline import check_replaceable

        check_target(baseline)
        check_replaceable(baseline)
    for path in reports:
        if path:
            check_target(path)
