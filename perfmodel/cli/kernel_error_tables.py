"""Tables of errors of kernel models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from perfmodel.cli.tables import add, new_table, show

if TYPE_CHECKING:
    from rich.console import Console

    from perfmodel.fit.kernel_errors import KernelErrors
    from perfmodel.fit.kernel_report import Compared

_ROW = ("op", "device", "dtype", "n", "MAPE", "GMAE", "median")


def show_errors(console: Console, rows: Sequence[KernelErrors]) -> None:
    """One line per op, device and dtype."""
    title = "Predicted against measured, errors in percent"
    table = new_table(title, *_ROW, "bias", "within 90 %", "width", texts=3)
    for row in rows:
        last = f"{row.bias_pct:.1f}", f"{row.coverage_frac:.2f}", f"{row.width_frac:.2f}"
        add(table, *_cells(row), *last)
    show(console, table)


def show_compared(console: Console, rows: Sequence[Compared], title: str) -> None:
    """One line per op and device, with what the roofline and plain trees have."""
    table = new_table(title, *_ROW, "within 90 %", "roofline", "plain trees", texts=3)
    for row in rows:
        beside = f"{row.roofline_pct:.1f}", f"{row.plain_pct:.1f}"
        last = f"{row.errors.coverage_frac:.2f}", *beside
        add(table, *_cells(row.errors), *last)
    show(console, table)


def _cells(row: KernelErrors) -> tuple[str, ...]:
    figures = (row.mape_pct, row.gmae_pct, row.median_pct)
    return (row.op, row.device, row.dtype, f"{row.n:,}", *(f"{value:.1f}" for value in figures))
