"""The held-out errors of a calibrated device as a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from perfmodel.cli.tables import add, new_table, say, show

if TYPE_CHECKING:
    from rich.console import Console

    from perfmodel.fit.device import DeviceFit


def show_fit(console: Console, fit: DeviceFit, output: Path) -> None:
    """Errors on the half that the fit had not seen, per family and kind of measurement."""
    rows = (*fit.errors, *([fit.steps] if fit.steps else []))
    if not rows:
        say(console, f"{output}: {fit.device.name}")
        return
    say(console, f"{output}: {fit.device.name}, fitted to all rows")
    titles = ("n", "median %", "p90 %", "bias %", "spread %")
    table = new_table("Errors on a half held out", "family", "measured", *titles, texts=2)
    for it in rows:
        add(
            table,
            it.family,
            it.kind,
            str(it.n),
            f"{it.median_pct:.1f}",
            f"{it.p90_pct:.1f}",
            f"{it.bias_pct:+.1f}",
            f"{it.spread_pct:.1f}",
        )
    show(console, table)
