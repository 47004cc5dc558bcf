"""One quantity over another: curves, levels, points, roofs and fronts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.base.arrays import Floats, Ints
from perfmodel.errors import UsageError
from perfmodel.plot import style
from perfmodel.plot.names import readable
from perfmodel.plot.style import Frame

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_MAX_OWN_TICKS = 8
"""Up to so many values of a logarithmic axis, its ticks stand at them."""
_MAX_MARKED, _MAX_NUMBERED = 40, 12
"""Points of a curve that are marked, and of a front that are numbered, at most."""
_MAX_POINTS, _CLOUD = 2_000, 20_000
"""Points drawn at most, of errors and below a front: of more, an even share."""
_MIN_RATIO, _MAX_RATIO = 0.1, 10.0
_MAX_AREA, _MIN_AREA = 260.0, 6.0
_MIN_FRAC = 1e-3
"""Of the time, what a kind of kernel must take to be drawn."""
GB_PER_TB = 1e3


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
    held: bool = False,
) -> Figure:
    """Draw column `y` over `x`, a curve for each name in the column `by`.

    Args:
        frame: the columns; rows whose `y` is NaN are gaps.
        labels: of the two axes, units in them.
        legend: heading of the names, where they do not speak for themselves.
        log: which axes are logarithmic (`x`, `y` or `xy`).
        held: whether a value holds until the next one, as memory does.

    Raises `UsageError` for a frame without rows.
    """
    name = style.texts(frame, by, "no curve to draw")
    across, up = style.floats(frame, x), style.floats(frame, y)
    with style.panels(6.4, 4.0) as (figure, (axes,)):
        for each, colour in style.colours_of(name.tolist()).items():
            rows = np.flatnonzero(name == each)
            rows = rows[np.argsort(across[rows], kind="stable")]
            marker = "o" if len(rows) <= _MAX_MARKED else ""
            line: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 4}
            line["drawstyle"] = "steps-post" if held else "default"
            axes.plot(across[rows], up[rows], label=each, **line)
        style.write_numbers(axes, ",.12g", log=log)
        if "x" in log and len(own := np.unique(across)) <= _MAX_OWN_TICKS:
            axes.set_xticks(own)
            axes.set_xticks([], minor=True)
        if "y" not in log:
            axes.set_ylim(bottom=0.0)
        axes.set(xlabel=labels[0], ylabel=labels[1], title=title)
        if len(axes.lines) > 1:
            axes.legend(title=legend or None)
    return figure


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
    group = style.texts(frame, "group", "no predictions to draw")
    measured = style.floats(frame, "measured_us")
    order = np.argsort(measured, kind="stable")
    order = order[:: max(1, -(-len(order) // _MAX_POINTS))]
    group, measured = group[order], measured[order]
    ratio, low, high = (
        np.clip(style.floats(frame, name)[order] / measured, _MIN_RATIO, _MAX_RATIO)
        for name in ("predicted_us", "low_us", "high_us")
    )
    missed = (low > 1.0) | (high < 1.0)
    with style.panels(8.0, 4.6) as (figure, (axes,)):
        axes.axhline(1.0, color=style.INK, linewidth=0.8)
        for rows, colour in ((~missed, style.GRID), (missed, style.FAINT)):
            axes.vlines(measured[rows], low[rows], high[rows], color=colour, linewidth=0.8)
        for name, colour in style.colours_of(sorted(set(group.tolist()))).items():
            on = group == name
            axes.scatter(measured[on], ratio[on], s=9, color=colour, label=name, zorder=3)
        axes.set(xscale="log", yscale="log", yticks=[0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0])
        style.write_numbers(axes, "g")
        axes.minorticks_off()
        spread = max(1.5, float(np.max(np.maximum(ratio, 1.0 / ratio))) * 1.1)
        axes.set(ylim=(1.0 / spread, spread), xlabel="measured (us)")
        axes.set_ylabel("predicted / measured")
        axes.set_title(f"{title}{'; ' if title else ''}{np.mean(~missed):.0%} within the interval")
        figure.legend(loc="outside right upper", markerscale=1.6)
    return figure


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
    family = style.texts(frame, "family", "no kernels that compute: there is no roofline to draw")
    intensity, rate, time = (
        style.floats(frame, k) for k in ("intensity", "tflop_per_s", "time_us")
    )
    seen = time >= _MIN_FRAC * time.sum()
    family, intensity, rate, time = family[seen], intensity[seen], rate[seen], time[seen]
    colours = style.colours_of(family[np.argsort(-time, kind="stable")].tolist())
    area = np.maximum(_MAX_AREA * time / time.max(), _MIN_AREA)
    left, right = min(intensity.min(), 0.1) / 2, max(intensity.max(), 1e3) * 2
    x = np.geomspace(left, right, 200)
    with style.panels(7.2, 4.4) as (figure, (axes,)):
        for peak in sorted(set(peaks.values())):
            names = ", ".join(readable(name) for name in peaks if peaks[name] == peak)
            axes.plot(x, np.minimum(x * gb_per_s / GB_PER_TB, peak), color=style.INK, linewidth=0.9)
            axes.annotate(
                f"{names} {peak:g} TFLOP/s", (right, peak), xytext=(-4, 3),
                textcoords="offset points", ha="right", color=style.FAINT, fontsize=7,
            )  # fmt: skip
        for name, colour in colours.items():
            on = family == name
            shown: dict[str, Any] = {"color": colour, "alpha": 0.75, "zorder": 3}
            axes.scatter(intensity[on], rate[on], s=area[on], label=readable(name), **shown)
        axes.set(xscale="log", yscale="log")
        style.write_numbers(axes, "g")
        axes.minorticks_off()
        axes.set(xlim=(left, right), ylim=(rate.min() / 3, max(peaks.values()) * 2), title=title)
        axes.set(xlabel=f"FLOP per byte (memory: {gb_per_s:,.0f} GB/s)", ylabel="TFLOP/s")
        legend = axes.legend(title="area: time in the step", loc="lower right")
        for handle in legend.legend_handles:
            handle.set_sizes([30.0])  # type: ignore[union-attr]
    return figure


def pareto_figure(
    across: Floats,
    up: Floats,
    front: Ints,
    *,
    labels: tuple[str, str],
    names: Sequence[str],
    same: str = "",
) -> Figure:
    """Points, and the front among them as a line, its points by their `names` where they are few;
    the legend says what is the `same` all along it.

    Raises `UsageError` where no point has both.
    """
    known = np.flatnonzero(~(np.isnan(across) | np.isnan(up)))
    if not len(known):
        raise UsageError("no point with figures to draw")
    shown = known[:: max(1, len(known) // _CLOUD)]
    order = front[np.argsort(across[front], kind="stable")]
    with style.panels(6.0, 4.2) as (figure, (axes,)):
        axes.scatter(
            across[shown],
            up[shown],
            s=8,
            color=style.FAINT,
            alpha=0.5,
            linewidth=0,
            rasterized=True,
        )
        if len(order):
            count = f"Pareto front ({len(order):,} of {len(known):,} points)"
            label = f"{count}: {same}" if same else count
            colour = style.FURTHER_COLOURS[0]
            axes.plot(across[order], up[order], label=label, color=colour, marker="o", markersize=4)
            axes.legend()
        far = np.quantile(axes.get_xlim(), 0.7)
        for at in order.tolist() if len(order) <= _MAX_NUMBERED else ():
            side, away = ("left", 5) if across[at] < far else ("right", -5)
            axes.annotate(
                names[at], (across[at], up[at]), xytext=(away, 5), textcoords="offset points",
                ha=side, fontsize=7, bbox={"facecolor": "white", "alpha": 0.8, "pad": 1},
            )  # fmt: skip
        axes.locator_params(axis="x", nbins=6)
        style.write_numbers(axes, ",.12g")
        axes.set(xlabel=labels[0], ylabel=labels[1])
    return figure
