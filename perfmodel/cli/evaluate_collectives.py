"""`perfmodel evaluate collectives`: predicted against measured curves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from perfmodel.cli.options import FormatOption, OutputOption
from perfmodel.cli.output import Output, working
from perfmodel.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console


def collectives(
    curves: Annotated[
        Path,
        typer.Option(metavar="CURVES.csv", help="What each curve is: collective, GPUs, wires."),
    ],
    data: Annotated[
        Path,
        typer.Option(metavar="POINTS.csv[.gz]", help="Its points: curve_id, size_bytes, time_us."),
    ],
    calibrate: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            metavar="BYTES,...",
            help="Sizes whose measured points correct their own curve; they are not scored.",
        ),
    ] = None,
    model: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="FILE", help="A model of `fit collectives`, for the shipped one."),
    ] = None,
    format: FormatOption = None,
    output: OutputOption = None,
) -> None:
    """How far predicted collectives are from measured ones, per curve, at 64 kB and more.

    \b
    Examples:
      perfmodel evaluate collectives --curves curves.csv --data points.csv.gz
      perfmodel evaluate collectives --curves curves.csv --data points.csv.gz \\
        --calibrate 262144,2097152,16777216,268435456
    """
    target = Output(format, output, sources=[curves, data, *([model] if model else [])])
    sizes = _sizes(calibrate)

    from perfmodel.network.store import load
    from perfmodel.validate.collectives import evaluate_collectives

    with working("evaluating"):
        found = evaluate_collectives(
            str(curves), str(data), sizes, load(model) if model is not None else None
        )

    def table(console: Console) -> None:
        from perfmodel.cli.tables import add, new_table, show

        lines = new_table(
            "Median over curves of the median error, 64 kB and more",
            *("collective", "where", "curves", "median %", "inside 90 %"),
            texts=2,
        )
        for row in found.summary():
            figures = (f"{row['median_pct']:.1f}", f"{100 * row['within_frac']:.0f}")
            add(lines, row["collective"], row["where"], str(row["curves"]), *figures)
        show(console, lines)

    target.write_result(found, table, found.warnings)


def _sizes(text: str | None) -> list[float]:
    try:
        sizes = [float(word) for word in (text or "").split(",") if word.strip()]
    except ValueError:
        sizes = [-1.0]
    if any(not 0 < size < float("inf") for size in sizes):
        raise UsageError(f"--calibrate {text}: expected sizes in bytes, as in 262144,2097152")
    return sizes
