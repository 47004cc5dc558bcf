"""The roofline: what kernels achieve over how much they compute per byte."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.errors import UsageError
from perfmodel.plot.canvas import new_figure
from perfmodel.plot.frames import Frame, floats, texts
from perfmodel.plot.style import FAINT, GRID, INK, colours_of, look, readable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WIDTH_IN, _HEIGHT_IN = 7.2, 4.4
_LARGEST_AREA, _SMALLEST_AREA = 260.0, 6.0
_POINTS = 200
_LEAST_FRAC = 1e-3
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
    seen = time >= _LEAST_FRAC * time.sum()
    family, intensity, rate, time = family[seen], intensity[seen], rate[seen], time[seen]
    order = list(dict.fromkeys(family[np.argsort(-time, kind="stable")].tolist()))
    colours = colours_of(order)
    area = np.maximum(_LARGEST_AREA * time / time.max(), _SMALLEST_AREA)
    left, right = min(intensity.min(), 0.1) / 2, max(intensity.max(), 1e3) * 2
    x = np.geomspace(left, right, _POINTS)
    from matplotlib.ticker import FuncFormatter

    with look():
        figure = new_figure(_WIDTH_IN, _HEIGHT_IN)
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
        axes.set_xscale("log")
        axes.set_yscale("log")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.minorticks_off()
        axes.set_xlim(left, right)
        axes.set_ylim(rate.min() / 3, max(peaks.values()) * 2)
        axes.set_xlabel(f"FLOP per byte (memory: {gb_per_s:,.0f} GB/s)")
        axes.set_ylabel("TFLOP/s")
        axes.grid(color=GRID, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.set_title(title)
        legend = axes.legend(title="area: time in the step", loc="lower right")
        for handle in legend.legend_handles:
            handle.set_sizes([30.0])  # type: ignore[union-attr]
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    return figure
