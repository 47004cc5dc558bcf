"""`perfmodel evaluate modules`: calls of PyTorch modules, predicted from source and measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfmodel.cli.options import FormatOption, OutputOption, SetOption
from perfmodel.cli.output import Output, working
from perfmodel.cli.tables import fitted, say
from perfmodel.units import human_us

if TYPE_CHECKING:
    from perfmodel.cli.console import Console
    from perfmodel.evaluation.modules import ModuleErrors


def modules(
    table: Annotated[
        Path, typer.Argument(metavar="TABLE.csv", help="Calls as `collect modules` measured them.")
    ],
    programs: Annotated[
        Path,
        typer.Option(metavar="DIR", help="The files that were measured; they are executed."),
    ],
    hardware: Annotated[
        str | None,
        typer.Option(metavar="NAME|FILE", help="What to predict for, if not the table's device."),
    ] = None,
    settings: SetOption = None,
    overheads: Annotated[
        str | None, typer.Option(metavar="NAME|FILE", help="The host, as a profile of overheads.")
    ] = None,
    format: FormatOption = None,
    output: OutputOption = None,
) -> None:
    """Predict calls of PyTorch modules from their source, and compare: call, host and device.

    Calls that the host bounds say which `host.single_thread_ratio` fits this machine: with `--set`,
    predictions of other modules then have its speed.

    \b
    Examples:
      perfmodel evaluate modules collected/modules.csv --programs models/
      perfmodel evaluate modules modules.csv --programs models/ --set host.single_thread_ratio=0.7
      perfmodel evaluate modules modules.csv --programs models/ --format csv -o errors.csv
    """
    target = Output(format, output, sources=[table])

    from perfmodel.evaluation.modules import evaluate_modules, read_calls

    calls = read_calls(table)
    with working("predicting") as begin:
        evaluation = evaluate_modules(
            calls,
            programs,
            hardware=hardware,
            settings=settings or (),
            overheads=overheads,
            begin=begin,
        )
    target.write_result(
        evaluation, lambda console: _show_modules(console, evaluation), evaluation.left_out
    )


def _show_modules(console: Console, evaluation: ModuleErrors) -> None:
    rows = [
        (
            row.program,
            f"{row.mode}{', training' if row.is_training else ''}",
            *(human_us(row.predicted_us), human_us(row.measured_us), _signed(row.error_pct)),
            *(_signed(row.host_error_pct), _signed(row.device_error_pct)),
        )
        for row in evaluation.rows
    ]
    titles = ("module", "mode", "predicted", "measured", "error %", "host %", "device %")
    console.show(fitted("Calls of modules", titles, rows))
    for each in evaluation.summary():
        device = each["device_median_pct"]
        say(
            console,
            f"{each['mode']}{', training' if each['is_training'] else ''}: n {each['n']}, "
            f"median {each['median_pct']:.1f} %, bias {each['bias_pct']:+.1f} %, "
            f"intervals hold {each['coverage_frac']:.0%}; host {each['host_median_pct']:.1f} % "
            f"(bias {each['host_bias_pct']:+.1f} %)"
            f"{'' if device is None else f', device {device:.1f} %'}",
        )

    speed, taken = evaluation.measured_host_speed_ratio, evaluation.host_speed_ratio
    if speed is not None:
        say(
            console,
            f"the host, by {len(evaluation.host_bound)} calls that it bounds: "
            f"--set host.single_thread_ratio={speed:.2g} (taken: {taken:.2g})",
        )


def _signed(error_pct: float | None) -> str:
    return "" if error_pct is None else f"{error_pct:+.1f}"
