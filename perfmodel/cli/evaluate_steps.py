"""`perfmodel evaluate steps`: step times predicted from shapes against measured ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfmodel.cli.options import FormatOption, OutputOption
from perfmodel.cli.output import Output, working

if TYPE_CHECKING:
    from rich.console import Console

    from perfmodel.validate.truth import StepErrors


def steps(
    truth: Annotated[
        list[Path],
        typer.Option(
            metavar="FILE",
            help="Table of configurations and step times (`collect truth`). Repeatable.",
        ),
    ],
    hardware: Annotated[
        str,
        typer.Option(metavar="NAME|FILE", help="The CPU, best as `fit device` calibrated it."),
    ],
    blind: Annotated[
        bool,
        typer.Option(help="Predict only: leave out what was measured, and the errors."),
    ] = False,
    format: FormatOption = None,
    output: OutputOption = None,
) -> None:
    """Predict un-profiled DLRM steps on a CPU from their shapes, and compare.

    \b
    Examples:
      perfmodel evaluate steps --truth traces/cpu_dlrm_truth/one_rank.csv --hardware mine.toml
      perfmodel evaluate steps --truth truth.csv --hardware mine.toml --blind -o predicted.json
    """
    target = Output(format, output, sources=[*truth, hardware])

    from perfmodel.errors import UsageError
    from perfmodel.fit.step_table import read_steps
    from perfmodel.hardware import device
    from perfmodel.validate.truth import evaluate_steps

    on = device(hardware)
    if on.target != "cpu":
        raise UsageError(f"--hardware {hardware}: is a {on.target} device; expected a CPU")
    listed = [step for path in truth for step in read_steps(path)]
    with working("predicting") as say:

        def begin(name: str, position: int) -> None:
            say(f"predicting {name} ({position + 1} of {len(listed)})")

        found = evaluate_steps(listed, on, blind=blind, begin=begin)

    target.write_result(found, lambda console: _show(console, found))


def _show(console: Console, found: StepErrors) -> None:
    from perfmodel.cli.tables import add, new_table, say, show
    from perfmodel.units import human_us

    titles = ("ranks", "predicted", "90 % interval", "measured", "error %", "spread %")
    table = new_table(f"Steps on {found.device}", "configuration", *titles)
    for row in found.rows:
        add(
            table,
            row.name,
            str(row.ranks),
            human_us(row.predicted_us),
            f"{human_us(row.low_us)} to {human_us(row.high_us)}",
            "" if row.measured_us is None else human_us(row.measured_us),
            "" if row.error_pct is None else f"{row.error_pct:+.1f}",
            "" if row.spread_pct is None else f"{row.spread_pct:.1f}",
        )
    show(console, table)
    summary = found.summary()
    if summary["n"]:
        say(
            console,
            f"n {summary['n']}, median {summary['median_pct']:.1f} %, "
            f"90th percentile {summary['p90_pct']:.1f} %, worst {summary['worst_pct']:.1f} %, "
            f"bias {summary['bias_pct']:+.1f} %, intervals hold {summary['coverage_frac']:.0%}",
        )
