"""`perfmodel sweep`: thousands of settings of hardware and workload, and what they show."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from perfmodel.cli.options import Format, FormatOption
from perfmodel.cli.output import Output, check_figure
from perfmodel.errors import UsageError

if TYPE_CHECKING:
    from perfmodel.explore import Spec, Sweep


RESULTS = "-results"
"""Behind the name of a SPEC, where no folder is named."""


def sweep(
    spec: Annotated[
        Path, typer.Argument(metavar="SPEC", help="What to sweep (.toml; see docs/sweep.md).")
    ],
    output: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "-o",
            "--output",
            metavar="DIR",
            help="Folder of the results (Parquet). A stopped sweep resumes where it was. "
            "[default: SPEC's name with -results, here]",
        ),
    ] = None,
    objective: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            metavar="A,B,...",
            help="step_us, samples_per_s, cost_usd_per_million, energy, power_w; in the place of "
            "SPEC's.",
        ),
    ] = None,
    workers: Annotated[
        int, typer.Option(metavar="N", min=0, help="Share the work among N processes (Dask).")
    ] = 0,
    scheduler: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="URL", help="Share it among a Dask cluster: tcp://HOST:8786."),
    ] = None,
    sensitivity: Annotated[
        bool, typer.Option("--sensitivity", help="Elasticities of every axis at the base point.")
    ] = False,
    reach: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            metavar="OBJECTIVE=VALUE", help="What must the axis of --along be to reach this?"
        ),
    ] = None,
    along: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="AXIS", help="The axis of --reach, or of --figure: scaling along it."),
    ] = None,
    sobol: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            metavar="N", help="Sobol indices of all axes with numbers, from N (a power of two)."
        ),
    ] = None,
    figure: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            metavar="FILE",
            help="Draw the front; with --along the scaling; with --sensitivity the tornado. "
            "(.png, .svg, .pdf)",
        ),
    ] = None,
    format: FormatOption = None,
) -> None:
    """Predict many machines and designs: front, best, what moves it.

    \b
    Examples:
      perfmodel sweep gpus.toml -o results
      perfmodel sweep gpus.toml --objective step_us,cost_usd_per_million,energy --figure front.svg
      perfmodel sweep gpus.toml --sensitivity --reach step_us=8000 --along device.hbm_gb_per_s
      perfmodel sweep gpus.toml --workers 8
    """
    if workers and scheduler:
        raise UsageError("--workers starts its own cluster: give --workers or --scheduler")
    if reach and not along:
        raise UsageError("--reach needs the axis to vary: --along AXIS")
    if along and not (reach or figure):
        raise UsageError("--along AXIS is for --reach, or for --figure")
    check_figure(figure, str(spec))
    target = Output(format or Format.TABLE, None)
    from perfmodel.explore import load_spec
    from perfmodel.explore import reach as reached
    from perfmodel.explore import sensitivity as moved
    from perfmodel.explore import sobol as indices
    from perfmodel.explore import sweep as swept

    wanted = load_spec(spec, objective)
    folder = output or Path(spec.stem + RESULTS)
    with _progress(wanted) as done:
        found = swept(wanted, folder, workers=workers, scheduler=scheduler, done=done)
    told = moved(wanted) if sensitivity else None
    gets = reached(wanted, reach, along) if reach and along else None
    shares = indices(wanted, sobol) if sobol is not None else None
    if figure:
        from perfmodel.plot import save

        drawn = told.plot() if told else found.scaling(along) if along and not reach else None
        save(drawn or found.plot(), figure)

    answer = found.to_dict()
    answer["sensitivity"] = told.to_dict() if told else None
    answer["reach"] = gets.to_dict() if gets else None
    answer["sobol"] = shares
    target.write(
        answer=lambda: answer,
        csv=lambda: found.to_frame().to_csv(index=False),
        table=lambda console: _show(console, found, answer),
        warnings=found.warnings,
    )


def _show(console: Any, found: Sweep, answer: dict[str, Any]) -> None:
    from perfmodel.cli.comparison_tables import show_sweep

    show_sweep(console, found, answer)


@contextmanager
def _progress(spec: Spec) -> Iterator[Callable[[int], None]]:
    """A bar with the time that is left on a terminal; nothing where standard error is none."""
    if not sys.stderr.isatty():
        yield lambda points: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = TextColumn("points"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("sweep", total=len(spec.space))
        yield lambda points: bar.advance(task, points)
