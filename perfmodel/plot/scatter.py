"""Predicted over measured, published next to predicted, and the roofline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from perfmodel.plot.style import (
    FAINT,
    GRID,
    INK,
    Frame,
    colours_of,
    drawing,
    figure_of,
    floats,
    log_axes,
    look,
    new_figure,
    open_frame,
    readable,
    texts,
    title_above,
    write_numbers,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_MAX_POINTS = 2_000
_MIN_RATIO, _MAX_RATIO = 0.1, 10.0
PER_MILLION = 1e-6
_MAX_AREA, _MIN_AREA = 260.0, 6.0
_MIN_FRAC = 1e-3
"""Of the time, what a kind of kernel must take to be drawn."""
GB_PER_TB = 1e3


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
    group = texts(frame, "group", "no predictions to draw")
    names = ("measured_us", "predicted_us", "low_us", "high_us")
    measured, *others = (floats(frame, name) for name in names)
    order = np.argsort(measured, kind="stable")
    order = order[:: max(1, -(-len(order) // _MAX_POINTS))]
    group, measured = group[order], measured[order]
    ratio, low, high = (
        np.clip(values[order] / measured, _MIN_RATIO, _MAX_RATIO) for values in others
    )
    missed = (low > 1.0) | (high < 1.0)
    with drawing(8.0, 4.6) as axes:
        axes.axhline(1.0, color=INK, linewidth=0.8)
        for rows, colour in ((~missed, GRID), (missed, FAINT)):
            axes.vlines(measured[rows], low[rows], high[rows], color=colour, linewidth=0.8)
        for name, colour in colours_of(sorted(set(group.tolist()))).items():
            on = group == name
            axes.scatter(measured[on], ratio[on], s=9, color=colour, label=name, zorder=3)
        _by_powers(axes)
        axes.set_yticks([0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0])
        spread = max(1.5, float(np.max(np.maximum(ratio, 1.0 / ratio))) * 1.1)
        axes.set(ylim=(1.0 / spread, spread), xlabel="measured (us)")
        axes.set_ylabel("predicted / measured")
        axes.set_title(f"{title}{'; ' if title else ''}{np.mean(~missed):.0%} within the interval")
        open_frame(axes, line_width=0.4)
        figure_of(axes).legend(loc="outside right upper", markerscale=1.6)
    return figure_of(axes)


def _by_powers(axes: Axes) -> None:
    axes.set(xscale="log", yscale="log")
    write_numbers(axes, "g")
    axes.minorticks_off()


def rates_figure(frame: Frame, *, title: str = "") -> Figure:
    """Draw one pair of axes per group: millions of samples per second over devices, both by powers.

    Args:
        frame: columns `group`, `device` (kind and settings), `devices` (how many), `published` and
            `predicted` (samples per second), a row per configuration.
        title: heading of the figure.

    Published rates are filled points; predicted ones are rings, joined where all else is equal.
    Raises `UsageError` for a frame without rows.
    """
    group, device = texts(frame, "group", "no rates to draw"), texts(frame, "device")
    count, published, predicted = (
        floats(frame, name) for name in ("devices", "published", "predicted")
    )
    published, predicted = published * PER_MILLION, predicted * PER_MILLION
    colours, groups = colours_of(device.tolist()), list(dict.fromkeys(group.tolist()))
    with look():
        figure = new_figure(4.2 * len(groups), 3.6)
        if title and len(groups) > 1:
            title_above(figure, title)
        every = figure.subplots(1, len(groups), squeeze=False)[0]
        for axes, name in zip(every, groups, strict=True):
            own = group == name
            for kind in dict.fromkeys(device[own].tolist()):
                rows = np.flatnonzero(own & (device == kind))
                rings = {"color": colours[kind], "marker": "o", "markerfacecolor": "none"}
                rows = rows[np.lexsort((-predicted[rows], count[rows]))]
                best = rows[np.unique(count[rows], return_index=True)[1]]
                others = np.setdiff1d(rows, best)
                axes.plot(count[best], predicted[best], linewidth=1.0, label=kind, **rings)
                if len(others):
                    axes.plot(count[others], predicted[others], linestyle="", **rings)
                axes.scatter(count[rows], published[rows], color=colours[kind], s=16)
            heading = f"{title}\n{name}" if title and len(groups) == 1 else name
            _over_devices(axes, heading, np.unique(count[own]))
            points = "\npoints: published" if np.isfinite(published[own]).any() else ""
            axes.legend(title=f"rings, lines: predicted{points}")
    return figure


def _over_devices(axes: Axes, title: str, ticks: NDArray[np.float64]) -> None:
    log_axes(axes, "y")
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{value:g}" for value in ticks.tolist()])
    write_numbers(axes, "g", "y")
    axes.minorticks_off()
    axes.set(title=title, xlabel="devices", ylabel="million samples per second")
    open_frame(axes, faint=("bottom",))


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
    family = texts(frame, "family", "no kernels that compute: there is no roofline to draw")
    intensity, rate, time = (floats(frame, k) for k in ("intensity", "tflop_per_s", "time_us"))
    seen = time >= _MIN_FRAC * time.sum()
    family, intensity, rate, time = family[seen], intensity[seen], rate[seen], time[seen]
    colours = colours_of(family[np.argsort(-time, kind="stable")].tolist())
    area = np.maximum(_MAX_AREA * time / time.max(), _MIN_AREA)
    left, right = min(intensity.min(), 0.1) / 2, max(intensity.max(), 1e3) * 2
    x = np.geomspace(left, right, 200)
    with drawing(7.2, 4.4) as axes:
        for peak in sorted(set(peaks.values())):
            names = ", ".join(readable(name) for name in peaks if peaks[name] == peak)
            axes.plot(x, np.minimum(x * gb_per_s / GB_PER_TB, peak), color=INK, linewidth=0.9)
            axes.annotate(
                f"{names} {peak:g} TFLOP/s", (right, peak), xytext=(-4, 3),
                textcoords="offset points", ha="right", color=FAINT, fontsize=7,
            )  # fmt: skip
        for name, colour in colours.items():
            on = family == name
            axes.scatter(
                intensity[on], rate[on], s=area[on], color=colour, alpha=0.75,
                label=readable(name), zorder=3,
            )  # fmt: skip
        _by_powers(axes)
        axes.set(xlim=(left, right), ylim=(rate.min() / 3, max(peaks.values()) * 2), title=title)
        axes.set(xlabel=f"FLOP per byte (memory: {gb_per_s:,.0f} GB/s)", ylabel="TFLOP/s")
        open_frame(axes)
        legend = axes.legend(title="area: time in the step", loc="lower right")
        for handle in legend.legend_handles:
            handle.set_sizes([30.0])  # type: ignore[union-attr]
    return figure_of(axes)
