"""Training rates over the number of devices: published points beside predicted ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import UsageError
from perfmodel.plot.canvas import new_figure
from perfmodel.plot.frames import Frame, floats, texts
from perfmodel.plot.style import FAINT, GRID, colours_of, look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_AXES_IN, _HEIGHT_IN = 4.2, 3.6
PER_MILLION = 1e-6


def rates_figure(frame: Frame, *, title: str = "") -> Figure:
    """Draw one pair of axes per group: millions of samples per second over devices, both by powers.

    Args:
        frame: columns `group`, `device` (kind and settings), `devices` (how many), `published` and
            `predicted` (samples per second), a row per configuration.
        title: heading of the figure.

    Published rates are filled points; predicted ones are rings, joined where all else is equal.
    Raises `UsageError` for a frame without rows.
    """
    group, device = (np.array(texts(frame, name), object) for name in ("group", "device"))
    if not len(group):
        raise UsageError("no rates to draw")
    count, published, predicted = (
        floats(frame, name) for name in ("devices", "published", "predicted")
    )
    names = list(dict.fromkeys(device.tolist()))
    colours = colours_of(names)
    groups = list(dict.fromkeys(group.tolist()))
    with look():
        figure = new_figure(_AXES_IN * len(groups), _HEIGHT_IN)
        if title:
            figure.suptitle(title, fontsize=10.0, fontweight="bold", x=0.01, ha="left")
        for axes, name in zip(
            figure.subplots(1, len(groups), squeeze=False)[0], groups, strict=True
        ):
            for kind in dict.fromkeys(device[group == name].tolist()):
                rows = np.flatnonzero((group == name) & (device == kind))
                rings = {"color": colours[kind], "marker": "o", "markerfacecolor": "none"}
                rows = rows[np.lexsort((-predicted[rows], count[rows]))]
                best = rows[np.unique(count[rows], return_index=True)[1]]
                others = np.setdiff1d(rows, best)
                axes.plot(
                    count[best], predicted[best] * PER_MILLION, linewidth=1.0, label=kind, **rings
                )
                if len(others):
                    axes.plot(count[others], predicted[others] * PER_MILLION, linestyle="", **rings)
                axes.scatter(count[rows], published[rows] * PER_MILLION, color=colours[kind], s=16)
            own = group == name
            _finish(axes, name, count[own], with_points=bool(np.isfinite(published[own]).any()))
    return figure


def _finish(axes: Axes, name: str, count: NDArray[np.float64], *, with_points: bool) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator

    ticks = np.unique(count)
    axes.set_title(name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(ticks, [f"{value:g}" for value in ticks.tolist()])
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.minorticks_off()
    axes.set_xlabel("devices")
    axes.set_ylabel("million samples per second")
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    points = "\npoints: published" if with_points else ""
    axes.legend(title=f"rings, lines: predicted{points}")
