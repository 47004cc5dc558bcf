"""Figures of sweeps: fronts, scaling along an axis, tornados of sensitivities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.arrays import Floats, Ints
from perfmodel.errors import UsageError
from perfmodel.plot.figure import new_figure, open_frame, write_numbers
from perfmodel.plot.style import FAINT, FURTHER_COLOURS, INK, look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_WIDTH_IN, _HEIGHT_IN = 6.0, 4.2
_BAR_IN = 0.34
_CLOUD = 20_000
"""Points drawn at most: of more, an even share; the front is always whole."""
_MOST_NUMBERED = 12
"""Points of a front that are numbered, at most."""
_BLUE, _ORANGE = FURTHER_COLOURS[0], FURTHER_COLOURS[1]


def pareto_figure(
    across: Floats, up: Floats, front: Ints, *, labels: tuple[str, str], names: Sequence[str]
) -> Figure:
    """Points, and the front among them as a line, its points by their `names` where they are few.

    Raises `UsageError` where no point has both.
    """
    known = np.flatnonzero(~(np.isnan(across) | np.isnan(up)))
    if not len(known):
        raise UsageError("no point with figures to draw")
    shown = known[:: max(1, len(known) // _CLOUD)]
    with look():
        figure = new_figure(_WIDTH_IN, _HEIGHT_IN)
        axes = figure.subplots()
        axes.scatter(
            across[shown], up[shown], s=8, color=FAINT, alpha=0.5, linewidth=0, rasterized=True
        )
        if len(front):
            order = front[np.argsort(across[front], kind="stable")]
            axes.plot(
                across[order],
                up[order],
                color=_BLUE,
                marker="o",
                markersize=4,
                label=f"Pareto front ({len(order):,} of {len(known):,} points)",
            )
            if len(order) <= _MOST_NUMBERED:
                for at in order.tolist():
                    place = (across[at], up[at])
                    axes.annotate(
                        names[at], place, fontsize=7, xytext=(4, 4), textcoords="offset points"
                    )
            axes.legend()
        _finish(axes, labels, plain=True)
    return figure


def scaling_figure(at: Floats, bands: Floats, *, labels: tuple[str, str]) -> Figure:
    """Median and range `[n, 3]` (least, median, largest) over the values of an axis `[n]`."""
    if not len(at):
        raise UsageError("no point with figures to draw")
    with look():
        figure = new_figure(_WIDTH_IN, _HEIGHT_IN)
        axes = figure.subplots()
        axes.fill_between(
            at, bands[:, 0], bands[:, 2], color=_BLUE, alpha=0.15, linewidth=0, label="range"
        )
        axes.plot(at, bands[:, 1], color=_BLUE, marker="o", markersize=4, label="median")
        axes.set_ylim(bottom=0.0)
        axes.legend()
        _finish(axes, labels, plain=True)
    return figure


def tornado_figure(
    names: Sequence[str], low: Floats, high: Floats, *, title: str, label: str
) -> Figure:
    """Bars from what a figure does to the left and to the right of 0, the longest on top.

    `low` and `high` `[n]` are the changes when the axis goes down and up.
    """
    if not len(names):
        raise UsageError("no sensitivities to draw")
    order = np.argsort(np.maximum(np.abs(low), np.abs(high)), kind="stable")
    place = np.arange(len(order))
    with look():
        figure = new_figure(_WIDTH_IN, 1.3 + _BAR_IN * len(order))
        axes = figure.subplots()
        half = 0.36
        axes.barh(place + half / 2, low[order], color=_ORANGE, height=half, label="less of it")
        axes.barh(place - half / 2, high[order], color=_BLUE, height=half, label="more of it")
        axes.axvline(0.0, color=INK, linewidth=0.8)
        axes.set_yticks(place, [names[at] for at in order.tolist()])
        axes.set_title(title)
        axes.legend(loc="lower right")
        _finish(axes, (label, ""))
    return figure


def _finish(axes: Axes, labels: tuple[str, str], *, plain: bool = False) -> None:
    """Labels and grid; with `plain`, numbers in full."""
    if plain:
        axes.locator_params(axis="x", nbins=6)
        write_numbers(axes, ",.12g")
    axes.set(xlabel=labels[0], ylabel=labels[1])
    open_frame(axes, faint=("bottom",))
