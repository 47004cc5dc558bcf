"""Tables of errors of kernel models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from perfmodel.fit.kernel_errors import KernelErrors
    from perfmodel.fit.kernel_report import LeftOut


def show_errors(console: Console, rows: Sequence[KernelErrors]) -> None:
    """One line per op, device and dtype."""
    from rich.table import Table

    table = Table(title="Predicted against measured, errors in percent", title_justify="left")
    for name in ("op", "device", "dtype"):
        table.add_column(name)
    for name in ("n", "MAPE", "GMAE", "median", "bias", "within 90 %", "width"):
        table.add_column(name, justify="right")
    for row in rows:
        figures = (row.mape_pct, row.gmae_pct, row.median_pct, row.bias_pct)
        table.add_row(
            *(row.op, row.device, row.dtype, f"{row.n:,}"),
            *(f"{figure:.1f}" for figure in figures),
            *(f"{row.coverage_frac:.2f}", f"{row.width_frac:.2f}"),
        )
    console.print(table)


def show_left_out(console: Console, rows: Sequence[LeftOut]) -> None:
    """One line per op and device that was left out of the fit."""
    from rich.table import Table

    table = Table(title="Each device left out in turn, errors in percent", title_justify="left")
    for name in ("op", "device", "dtype"):
        table.add_column(name)
    for name in ("n", "MAPE", "GMAE", "median", "within 90 %", "roofline", "plain trees"):
        table.add_column(name, justify="right")
    for row in rows:
        own = row.errors
        table.add_row(
            *(own.op, own.device, own.dtype, f"{own.n:,}"),
            *(f"{figure:.1f}" for figure in (own.mape_pct, own.gmae_pct, own.median_pct)),
            *(f"{own.coverage_frac:.2f}", f"{row.roofline_pct:.1f}"),
            "" if row.plain_pct is None else f"{row.plain_pct:.1f}",
        )
    console.print(table)
