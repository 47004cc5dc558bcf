"""One quantity over another, a curve per name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from perfmodel.errors import UsageError
from perfmodel.plot.canvas import new_figure
from perfmodel.plot.frames import Frame, floats, texts
from perfmodel.plot.style import FAINT, GRID, colours_of, look

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WIDTH_IN, _HEIGHT_IN = 6.4, 4.0
_MOST_OWN_TICKS = 8
"""Up to so many values of a logarithmic axis, its ticks stand at them."""


def curves_figure(
    frame: Frame,
    x: str,
    y: str,
    by: str,
    *,
    labels: tuple[str, str],
    title: str = "",
    legend: str = "",
    log: str = "",
) -> Figure:
    """Draw column `y` over `x`, a curve for each name in the column `by`.

    Args:
        frame: the three columns; rows whose `y` is NaN are gaps.
        labels: of the two axes, units in them.
        legend: heading of the names, where they do not speak for themselves.
        log: which axes are logarithmic (`x`, `y` or `xy`).

    Raises `UsageError` for a frame without rows.
    """
    across, up, name = floats(frame, x), floats(frame, y), np.array(texts(frame, by), object)
    if not len(across):
        raise UsageError("no curve to draw")
    names = list(dict.fromkeys(name.tolist()))
    colours = colours_of(names)
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    plain = FuncFormatter(lambda value, _: f"{value:,g}")
    with look():
        figure = new_figure(_WIDTH_IN, _HEIGHT_IN)
        axes = figure.subplots()
        for each in names:
            rows = np.flatnonzero(name == each)
            rows = rows[np.argsort(across[rows], kind="stable")]
            axes.plot(
                across[rows], up[rows], color=colours[each], marker="o", markersize=4, label=each
            )
        for letter, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
            if letter in log:
                getattr(axes, f"set_{letter}scale")("log")
                axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
                axis.set_minor_formatter(NullFormatter())
            axis.set_major_formatter(plain)
        if "x" in log and len(own := np.unique(across)) <= _MOST_OWN_TICKS:
            axes.set_xticks(own)
            axes.set_xticks([], minor=True)
        if "y" not in log:
            axes.set_ylim(bottom=0.0)
        axes.set_xlabel(labels[0])
        axes.set_ylabel(labels[1])
        axes.set_title(title)
        axes.grid(color=GRID, linewidth=0.6)
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        for side in ("left", "bottom"):
            axes.spines[side].set_color(FAINT)
        if len(names) > 1:
            axes.legend(title=legend or None)
    return figure
