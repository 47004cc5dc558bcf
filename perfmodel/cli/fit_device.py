"""`perfmodel fit device`: a calibrated device from measurement tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from perfmodel.cli.options import Format, FormatOption
from perfmodel.cli.output import Output, check_writable, rows_csv, working

if TYPE_CHECKING:
    from rich.console import Console

    from perfmodel.fit.device import DeviceFit

SCHEMA = "perfmodel.fit.device/1"
COLUMNS = ("family", "kind", "n", "median_pct", "p90_pct", "bias_pct", "spread_pct")


def device(
    data: Annotated[
        list[Path],
        typer.Option(
            metavar="FILE",
            help="Tables of `collect kernels` and `collect ops`, and the step times beside the "
            "latter; CSV, also compressed, or Parquet. Repeatable.",
        ),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="The device's file (TOML).")
    ],
    hardware: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            metavar="NAME|FILE",
            help="Start from this device. [default: as the records beside the tables say]",
        ),
    ] = None,
    only: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--device", metavar="NAME", help="Of tables of several, the one to fit."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Which half is held out for the errors.")] = 0,
    format: FormatOption = None,
) -> None:
    """Calibrate a device on its measurements, and say how far it is off on what it has not seen.

    \b
    Examples:
      perfmodel fit device --data kernels.csv -o my-machine.toml
      perfmodel fit device --data kernels.csv --data ops.csv.gz --data ops_steps.csv -o mine.toml
    """
    target = Output(format or Format.TABLE, None)
    for path in data:
        check_writable(output, str(path))

    from perfmodel.files import write_text
    from perfmodel.fit.any_device import fit_any_device

    with working("reading the tables") as say:
        fit, text = fit_any_device(
            data, hardware, stem=output.stem, only=only, seed=seed, progress=say
        )
    write_text(output, text)

    def table(console: Console) -> None:
        from perfmodel.cli.fit_device_table import show_fit

        show_fit(console, fit, output)

    target.write(
        answer=lambda: _answer(fit, output),
        csv=lambda: rows_csv(_rows(fit), COLUMNS),
        table=table,
        warnings=list(fit.notes),
    )


def _rows(fit: DeviceFit) -> list[dict[str, Any]]:
    from dataclasses import asdict

    return [asdict(it) for it in (*fit.errors, *([fit.steps] if fit.steps else []))]


def _answer(fit: DeviceFit, output: Path) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "device": fit.device.name,
        "file": str(output),
        "seed": fit.seed,
        "held_out": _rows(fit),
        "warnings": list(fit.notes),
    }
