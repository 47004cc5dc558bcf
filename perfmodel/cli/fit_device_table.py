"""The held-out errors of a calibrated device as a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from perfmodel.fit.device import DeviceFit


def show_fit(console: Console, fit: DeviceFit, output: Path) -> None:
    """Errors on the half that the fit had not seen, per family and kind of measurement."""
    from rich.table import Table

    rows = (*fit.errors, *([fit.steps] if fit.steps else []))
    if not rows:
        console.print(f"{output}: {fit.device.name}")
        return
    console.print(f"{output}: {fit.device.name}, fitted to all rows; errors on a half held out")
    table = Table(box=None, pad_edge=False)
    table.add_column("family")
    table.add_column("measured")
    for title in ("n", "median %", "p90 %", "bias %", "spread %"):
        table.add_column(title, justify="right")
    for it in rows:
        table.add_row(
            it.family,
            it.kind,
            str(it.n),
            f"{it.median_pct:.1f}",
            f"{it.p90_pct:.1f}",
            f"{it.bias_pct:+.1f}",
            f"{it.spread_pct:.1f}",
        )
    console.print(table)
