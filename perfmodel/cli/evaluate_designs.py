"""`perfmodel evaluate designs`: what papers published about their designs, against predictions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from perfmodel.cli.options import FormatOption, OutputOption
from perfmodel.cli.output import Output, working

if TYPE_CHECKING:
    from rich.console import Console

    from perfmodel.validate.designs import DesignFigures


def designs(
    only: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(metavar="NAME", help="This one alone (V12); may be given more than once."),
    ] = None,
    folder: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="DIR", help="Published figures, for the checkout's traces/published."),
    ] = None,
    format: FormatOption = None,
    output: OutputOption = None,
) -> None:
    """Recompute the figures that papers published about co-designs, each beside its tolerance.

    What cannot be read as a number is a band. `assumed` lists what no source says, and which
    constants saw the figure.

    \b
    Examples:
      perfmodel evaluate designs
      perfmodel evaluate designs --only V5 --format json
    """
    target = Output(format, output)

    from perfmodel.validate.designs import evaluate_designs

    with working("predicting"):
        found = evaluate_designs(only=only or (), folder=folder)
    target.write_result(found, lambda console: _show(console, found))


def _show(console: Console, found: DesignFigures) -> None:
    from perfmodel.cli.tables import add, new_table, say, show

    titles = ("predicted", "published", "unit", "error %", "tolerance %", "holds")
    table = new_table("Published designs", "figure", *titles, texts=1)
    for figure in found.figures:
        target = figure.target
        band = (
            f"{target[0]:.4g} to {target[1]:.4g}" if isinstance(target, tuple) else f"{target:.4g}"
        )
        add(
            table,
            figure.id,
            f"{figure.predicted:.4g}",
            band,
            figure.unit,
            f"{figure.error_pct:+.1f}",
            f"{figure.tolerance_pct:g}",
            "yes" if figure.holds else "no",
        )
    show(console, table)
    hold = sum(figure.holds for figure in found.figures)
    say(console, f"{hold} of {len(found.figures)} hold")
