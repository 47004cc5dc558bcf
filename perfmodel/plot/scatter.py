"""Predicted over measured, published beside predicted, and the roofline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import UsageError
from perfmodel.plot.figure import Frame, floats, new_figure, open_frame, texts, write_numbers
from perfmodel.plot.style import FAINT, GRID, INK, colours_of, look, readable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_WIDTH_IN, _HEIGHT_IN = 8.0, 4.6
_MAX_POINTS = 2_000
_MIN_RATIO, _MAX_RATIO = 0.1, 10.0


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
    order = order[:: max(1, -(-len(order) // _MAX_POINTS))]
    group, measured = group[order], measured[order]
    ratio, low, high = (
        np.clip(values[order] / measured, _MIN_RATIO, _MAX_RATIO) for values in others
    )
    missed = (low > 1.0) | (high < 1.0)
    colours = colours_of(sorted(set(group.tolist())))
    with look():
        figure = new_figure(_WIDTH_IN, _HEIGHT_IN)
        axes = figure.add_subplot()
        axes.axhline(1.0, color=INK, linewidth=0.8)
        axes.vlines(measured[~missed], low[~missed], high[~missed], color=GRID, linewidth=0.8)
        axes.vlines(measured[missed], low[missed], high[missed], color=FAINT, linewidth=0.8)
        for name, colour in colours.items():
            on = group == name
            axes.scatter(measured[on], ratio[on], s=9, color=colour, label=name, zorder=3)
        axes.set(xscale="log", yscale="log")
        write_numbers(axes, "g")
        axes.minorticks_off()
        axes.set_yticks([0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0])
        spread = max(1.5, float(np.max(np.maximum(ratio, 1.0 / ratio))) * 1.1)
        axes.set_ylim(1.0 / spread, spread)
        axes.set(xlabel="measured (us)", ylabel="predicted / measured")
        axes.set_title(f"{title}{'; ' if title else ''}{np.mean(~missed):.0%} within the interval")
        open_frame(axes, line_width=0.4)
        figure.legend(loc="outside right upper", markerscale=1.6)
    return figure


_AXES_IN, _RATES_HEIGHT_IN = 4.2, 3.6
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
        figure = new_figure(_AXES_IN * len(groups), _RATES_HEIGHT_IN)
        if title and len(groups) > 1:
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
            heading = f"{title}\n{name}" if title and len(groups) == 1 else name
            _finish(axes, heading, count[own], with_points=bool(np.isfinite(published[own]).any()))
    return figure


def _finish(axes: Axes, title: str, count: NDArray[np.float64], *, with_points: bool) -> None:
    from matplotlib.ticker import LogLocator

    ticks = np.unique(count)
    axes.set_title(title)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(ticks, [f"{value:g}" for value in ticks.tolist()])
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    write_numbers(axes, "g", "y")
    axes.minorticks_off()
    axes.set(xlabel="devices", ylabel="million samples per second")
    open_frame(axes, faint=("bottom",))
    points = "\npoints: published" if with_points else ""
    axes.legend(title=f"rings, lines: predicted{points}")


_ROOFLINE_WIDTH_IN, _ROOFLINE_HEIGHT_IN = 7.2, 4.4
_MAX_AREA, _MIN_AREA = 260.0, 6.0
_POINTS = 200
_MIN_FRAC = 1e-3
"""Of the time, what a kind of kernel must take to be drawn."""
GB_PER_TB = 1e3


def roofline_figure(
    frame: Frame, *, peaks: Mapping[str, float], gb_per_s: float, title: str = ""
) -> Figure:
    """Draw kernels as points below a device's roofs, both axes by powers of ten.

    Args:
        frame: columns `family`, `intensity` (FLOP per byte), `tflop_per_s` (achieved) and `time_us`
            (all of the kind together, the area of its point), a row per kind of kernel.
        peaks: roofs of computing, TFLOP/s by name.
        gb_per_s: bandwidth of the memory.
        title: heading of the figure.

    Source: Williams, Waterman, Patterson, "Roofline", CACM 2009. Raises `UsageError` for a frame
    without rows.
    """
    family = np.array(texts(frame, "family"), object)
    if not len(family):
        raise UsageError("no kernels that compute: there is no roofline to draw")
    intensity, rate, time = (floats(frame, k) for k in ("intensity", "tflop_per_s", "time_us"))
    seen = time >= _MIN_FRAC * time.sum()
    family, intensity, rate, time = family[seen], intensity[seen], rate[seen], time[seen]
    order = list(dict.fromkeys(family[np.argsort(-time, kind="stable")].tolist()))
    colours = colours_of(order)
    area = np.maximum(_MAX_AREA * time / time.max(), _MIN_AREA)
    left, right = min(intensity.min(), 0.1) / 2, max(intensity.max(), 1e3) * 2
    x = np.geomspace(left, right, _POINTS)
    with look():
        figure = new_figure(_ROOFLINE_WIDTH_IN, _ROOFLINE_HEIGHT_IN)
        axes = figure.add_subplot()
        for peak in sorted(set(peaks.values())):
            roof = np.minimum(x * gb_per_s / GB_PER_TB, peak)
            names = ", ".join(readable(name) for name in peaks if peaks[name] == peak)
            axes.plot(x, roof, color=INK, linewidth=0.9)
            axes.annotate(
                f"{names} {peak:g} TFLOP/s",
                (right, peak),
                xytext=(-4, 3),
                textcoords="offset points",
                ha="right",
                color=FAINT,
                fontsize=7,
            )
        for name in order:
            on = family == name
            axes.scatter(
                intensity[on],
                rate[on],
                s=area[on],
                color=colours[name],
                alpha=0.75,
                label=readable(name),
                zorder=3,
            )
        axes.set(xscale="log", yscale="log")
        write_numbers(axes, "g")
        axes.minorticks_off()
        axes.set(xlim=(left, right), ylim=(rate.min() / 3, max(peaks.values()) * 2), title=title)
        axes.set(xlabel=f"FLOP per byte (memory: {gb_per_s:,.0f} GB/s)", ylabel="TFLOP/s")
        open_frame(axes)
        legend = axes.legend(title="area: time in the step", loc="lower right")
        for handle in legend.legend_handles:
            handle.set_sizes([30.0])  # type: ignore[union-attr]
    return figure
