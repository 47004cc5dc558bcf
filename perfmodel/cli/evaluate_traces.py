"""`perfmodel evaluate traces`: predicted against measured, on traces and tables of folders."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from perfmodel.cli.options import (
    DEFAULT_MAX_GB,
    FormatOption,
    MaxMemoryOption,
    OutputOption,
    StrictOption,
    max_bytes,
)
from perfmodel.cli.output import Output, working

if TYPE_CHECKING:
    from rich.console import Console

    from perfmodel.validate import Evaluation

DEFAULT_FOLDER = Path("traces")


def traces(
    paths: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Argument(
            metavar="[FOLDER|TRACE...]",
            help="Single files, or folders with whatever lies below them, each folder of ranks as "
            "one job, and measurement tables beside a device's file (.toml); without any, the "
            "folder `traces` here and the bundled demo.",
        ),
    ] = None,
    format: FormatOption = None,
    output: OutputOption = None,
    strict: StrictOption = False,
    max_memory: MaxMemoryOption = DEFAULT_MAX_GB,
) -> None:
    """How far predictions are from what was measured, per step, host overhead and kernel family.

    A replay has seen the step's own durations; all other errors are of what was left out, or of
    predictions from shapes alone.

    \b
    Examples:
      perfmodel evaluate traces                         the project's traces and the demo
      perfmodel evaluate traces my-traces/ one.json.gz
      perfmodel evaluate traces --format json -o errors.json
    """
    target = Output(format, output, sources=paths or [])
    found = evaluated(paths or [], strict=strict, limit_bytes=max_bytes(max_memory))

    def table(console: Console) -> None:
        from perfmodel.cli.evaluate_tables import show_evaluation

        show_evaluation(console, found)

    target.write_result(found, table, found.warnings)


def evaluated(paths: list[str], *, strict: bool, limit_bytes: int) -> Evaluation:
    """The errors over `paths`; without any, over the folder `traces` here and the demo."""
    from perfmodel.validate import demo_job, evaluate_jobs, find_jobs, find_tables

    given = paths or ([str(DEFAULT_FOLDER)] if DEFAULT_FOLDER.is_dir() else [])
    jobs = find_jobs(given, max_bytes=limit_bytes)
    if not paths:
        jobs.insert(0, demo_job())
    with working("evaluating") as say:

        def begin(name: str, position: int) -> None:
            say(f"evaluating {name} ({position + 1} of {len(jobs)})")

        return evaluate_jobs(
            jobs, find_tables(given), strict=strict, max_bytes=limit_bytes, begin=begin
        )
