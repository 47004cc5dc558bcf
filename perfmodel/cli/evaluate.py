"""`perfmodel evaluate`: predicted against measured."""

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
from perfmodel.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from perfmodel.validate import Evaluation, Job

TRACES = "traces"
DEFAULT_FOLDER = Path("traces")


def evaluate(
    what: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Argument(
            metavar="traces [FOLDER|TRACE...]",
            help="Traces: single files, or folders with whatever lies below them, each folder of "
            "ranks as one job; without any, the folder `traces` here and the bundled demo.",
        ),
    ] = None,
    format: FormatOption = None,
    output: OutputOption = None,
    strict: StrictOption = False,
    max_memory: MaxMemoryOption = DEFAULT_MAX_GB,
) -> None:
    """How far predictions are from what was measured, per step, host overhead and kernel family.

    A replay has seen the step's own durations; all other errors are of steps that were left out.

    \b
    Examples:
      perfmodel evaluate traces                         the project's traces and the demo
      perfmodel evaluate traces my-traces/ one.json.gz
      perfmodel evaluate traces --format json -o errors.json
    """
    subject, *paths = what or [""]
    if subject != TRACES:
        given = f"{subject!r}: " if subject else ""
        raise UsageError(f"{given}evaluate what? perfmodel evaluate {TRACES} [FOLDER|TRACE...]")
    target = Output(format, output)
    found = evaluated(paths, strict=strict, limit_bytes=max_bytes(max_memory))

    def table(console: Console) -> None:
        from perfmodel.cli.evaluate_tables import show_evaluation

        show_evaluation(console, found)

    target.write(
        answer=found.to_dict,
        csv=lambda: found.to_frame().to_csv(index=False),
        table=table,
        warnings=found.warnings,
    )


def evaluated(paths: list[str], *, strict: bool, limit_bytes: int) -> Evaluation:
    """The errors over `paths`; without any, over the folder `traces` here and the demo."""
    from perfmodel.validate import demo_job, evaluate_jobs, find_jobs

    if paths:
        jobs = find_jobs(paths, max_bytes=limit_bytes)
    else:
        here = [DEFAULT_FOLDER] if DEFAULT_FOLDER.is_dir() else []
        jobs = [demo_job(), *find_jobs(here, max_bytes=limit_bytes)]
    with working("evaluating") as status:

        def begin(job: Job) -> None:
            if status is not None:
                status.update(f"evaluating {job.name} ({jobs.index(job) + 1} of {len(jobs)})")

        return evaluate_jobs(jobs, strict=strict, max_bytes=limit_bytes, begin=begin)
