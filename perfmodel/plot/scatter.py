"""Predicted over measured, with intervals: how far each prediction is off, and whether it knew."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from perfmodel.errors import UsageError
from perfmodel.plot.canvas import new_figure
from perfmodel.plot.frames import Frame, floats, texts
from perfmodel.plot.style import FAINT, GRID, INK, colours_of, look

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WIDTH_IN, _HEIGHT_IN = 8.0, 4.6
_MOST_POINTS = 2_000
_LEAST_RATIO, _MOST_RATIO = 0.1, 10.0


def errors_figure(frame: Frame, *, title: str = "") -> Figure:
    """Draw the ratio of predicted to measured over what was measured, both by powers.

    Args:
        frame: columns `group` (colour), `measured_us`, `predicted_us`, `low_us`, `high_us`, a row
            per prediction.
        title: heading of the figure.

    Bars are intervals; those that miss 1 are drawn darker. Of more than 2,000 rows, every n-th of
    the rows in order of time is shown, and ratios beyond 0.1 to 10 at the edge. Raises `UsageError`
    for a frame without rows.
    """
    group = np.array(texts(frame, "group"), object)
    if not len(group):
        raise UsageError("no predictions to draw")
    names = ("measured_us", "predicted_us", "low_us", "high_us")
    measured, *others = (floats(frame, name) for name in names)
    order = np.argsort(measured, kind="stable")
    order = order[:: max(1, -(-len(order) // _MOST_POINTS))]
    group, measured = group[order], measured[order]
    ratio, low, high = (
        np.clip(values[order] / measured, _LEAST_RATIO, _MOST_RATIO) for values in others
    )
    missed = (low > 1.0) | (high < 1.0)
    colours = colours_of(sorted(set(group.tolist())))
    from matplotlib.ticker import FuncFormatter

    with look():
        figure = new_figure(_WIDTH_IN, _HEIGHT_IN)
        axes = figure.add_subplot()
        axes.axhline(1.0, color=INK, linewidth=0.8)
        axes.vlines(measured[~missed], low[~missed], high[~missed], color=GRID, linewidth=0.8)
        axes.vlines(measured[missed], low[missed], high[missed], color=FAINT, linewidth=0.8)
        for name, colour in colours.items():
            on = group == name
            axes.scatter(measured[on], ratio[on], s=9, color=colour, label=name, zorder=3)
        axes.set_xscale("log")
        axes.set_yscale("log")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.minorticks_off()
        axes.set_yticks([0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0])
        spread = max(1.5, float(np.max(np.maximum(ratio, 1.0 / ratio))) * 1.1)
        axes.set_ylim(1.0 / spread, spread)
        axes.set_xlabel("measured (us)")
        axes.set_ylabel("predicted / measured")
        axes.set_title(f"{title}{'; ' if title else ''}{np.mean(~missed):.0%} within the interval")
        axes.grid(color=GRID, linewidth=0.4)
        axes.set_axisbelow(True)
        figure.legend(loc="outside right upper", markerscale=1.6)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    return figure
