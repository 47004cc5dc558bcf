"""Figures that compare: sweeps (fronts, scaling, tornados), and designs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.arrays import Floats, Ints
from perfmodel.errors import UsageError
from perfmodel.plot.style import (
    FAINT,
    FURTHER_COLOURS,
    INK,
    Frame,
    drawing,
    figure_of,
    floats,
    look,
    new_figure,
    open_frame,
    texts,
    time_unit,
    title_above,
    write_numbers,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_WIDTH_IN, _HEIGHT_IN = 6.0, 4.2
_BAR_IN = 0.34
_CLOUD = 20_000
"""Points drawn at most: of more, an even share; the front is always whole."""
_MAX_NUMBERED = 12
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
    order = front[np.argsort(across[front], kind="stable")]
    with drawing(_WIDTH_IN, _HEIGHT_IN) as axes:
        cloud: dict[str, Any] = {"color": FAINT, "alpha": 0.5, "linewidth": 0, "rasterized": True}
        axes.scatter(across[shown], up[shown], s=8, **cloud)
        if len(order):
            label = f"Pareto front ({len(order):,} of {len(known):,} points)"
            line: dict[str, Any] = {"color": _BLUE, "marker": "o", "markersize": 4}
            axes.plot(across[order], up[order], label=label, **line)
            axes.legend()
        for at in order.tolist() if len(order) <= _MAX_NUMBERED else ():
            axes.annotate(
                names[at], (across[at], up[at]), xytext=(-5, 5), textcoords="offset points",
                ha="right", fontsize=7, bbox={"facecolor": "white", "alpha": 0.8, "pad": 1},
            )  # fmt: skip
        _finish(axes, labels)
    return figure_of(axes)


def scaling_figure(at: Floats, bands: Floats, *, labels: tuple[str, str]) -> Figure:
    """Median and range `[n, 3]` (least, median, largest) over the values of an axis `[n]`."""
    if not len(at):
        raise UsageError("no point with figures to draw")
    with drawing(_WIDTH_IN, _HEIGHT_IN) as axes:
        band: dict[str, Any] = {"color": _BLUE, "alpha": 0.15, "linewidth": 0, "label": "range"}
        axes.fill_between(at, bands[:, 0], bands[:, 2], **band)
        axes.plot(at, bands[:, 1], color=_BLUE, marker="o", markersize=4, label="median")
        axes.set_ylim(bottom=0.0)
        axes.legend()
        _finish(axes, labels)
    return figure_of(axes)


def _finish(axes: Axes, labels: tuple[str, str]) -> None:
    """Labels, numbers in full, and a grid."""
    axes.locator_params(axis="x", nbins=6)
    write_numbers(axes, ",.12g")
    axes.set(xlabel=labels[0], ylabel=labels[1])
    open_frame(axes, faint=("bottom",))


def tornado_figure(
    names: Sequence[str], low: Floats, high: Floats, *, title: str, label: str
) -> Figure:
    """Bars from what a figure does to the left and to the right of 0, the longest on top.

    `low` and `high` `[n]` are the changes when the axis goes down and up.
    """
    if not len(names):
        raise UsageError("no sensitivities to draw")
    order = np.argsort(np.maximum(np.abs(low), np.abs(high)), kind="stable")
    place, half = np.arange(len(order)), 0.36
    with drawing(_WIDTH_IN, 1.3 + _BAR_IN * len(order)) as axes:
        axes.barh(place + half / 2, low[order], color=_ORANGE, height=half, label="lower")
        axes.barh(place - half / 2, high[order], color=_BLUE, height=half, label="higher")
        axes.axvline(0.0, color=INK, linewidth=0.8)
        axes.set_yticks(place, [names[at] for at in order.tolist()])
        axes.set(title=title, xlabel=label)
        axes.legend(loc="lower right")
        open_frame(axes, faint=("bottom",))
    return figure_of(axes)


_PANELS_IN, _ROW_IN = 11.0, 0.42
_TIERS = {
    "hbm": ("per rank", FURTHER_COLOURS[1]),
    "dram": ("per rank", FURTHER_COLOURS[0]),
    "host": ("per node", FURTHER_COLOURS[4]),
    "storage": ("per node", FURTHER_COLOURS[3]),
    "nic": ("per node", FURTHER_COLOURS[7]),
}
"""Memory by tier: what it is counted per, and its colour."""
_WHY_CHARACTERS = 64
_MONEY = (("kwh_per_million_samples", "Wh", 1e3), ("usd_per_million_samples", "US cents", 1e2))
_FAR_APART = 8.0
"""From this ratio on, values are points on a logarithmic axis, where bars would start nowhere."""


def comparison_figure(frame: Frame, *, title: str = "") -> Figure:
    """Draw one row per design.

    Args:
        frame: columns `design`, `step_us`, `low_us`, `high_us`, `why_not`, and where they are
            there `kwh_per_million_samples`, `usd_per_million_samples` and `TIER_gb`; a design that
            cannot be has no `step_us`.
        title: heading of the figure.

    Raises `UsageError` where there is no design.
    """
    names = texts(frame, "design", "no designs to draw").tolist()
    money = [each for each in _MONEY if _some(frame, each[0])]
    tiers = [tier for tier in _TIERS if _some(frame, f"{tier}_gb")]
    place = np.arange(len(names), dtype=np.float64)
    with look():
        figure = new_figure(_PANELS_IN, 1.5 + _ROW_IN * len(names))
        ratios = [2.2, *[1.0] * (bool(tiers) + len(money))]
        grid = figure.subplots(1, len(ratios), sharey=True, width_ratios=ratios, squeeze=False)
        first, *others = grid[0]
        _steps(first, frame, place)
        first.set_yticks(place, names)
        first.invert_yaxis()
        if tiers:
            _memory(others.pop(0), frame, tiers, place)
        for axes, (column, unit, per_unit) in zip(others, money, strict=True):
            value = per_unit * floats(frame, column)
            _values(axes, place, value, value, value, colour=FURTHER_COLOURS[2])
            axes.set_xlabel(f"{unit} per million samples")
        for axes in grid[0]:
            open_frame(axes, grid="x")
        title_above(figure, title)
    return figure


def _steps(axes: Axes, frame: Frame, place: Floats) -> None:
    """Bars of step time with their intervals; a text where there is none."""
    step, low, high = (floats(frame, name) for name in ("step_us", "low_us", "high_us"))
    scale, unit = time_unit(float(np.nanmax(high)) if np.isfinite(high).any() else 1.0)
    known = np.isfinite(step)
    _values(axes, place, step / scale, low / scale, high / scale, colour=FURTHER_COLOURS[0])
    for at, why in zip(place[~known], texts(frame, "why_not")[~known], strict=True):
        text = f" cannot be: {shorten(str(why), _WHY_CHARACTERS, placeholder=' …')}"
        by_row = axes.get_yaxis_transform()
        axes.text(0.0, at, text, va="center", color=FAINT, fontsize=7.0, transform=by_row)
    axes.set_xlabel(f"step ({unit}), 90 % interval")


def _values(
    axes: Axes, place: Floats, value: Floats, low: Floats, high: Floats, *, colour: str
) -> None:
    """Values with their intervals: bars from 0, or points where they are far apart."""
    known = np.isfinite(value)
    place, value, low, high = place[known], value[known], low[known], high[known]
    spread = np.stack([value - low, high - value])
    capsize = 2.0 if spread.any() else 0.0
    line: dict[str, Any] = {"ecolor": INK, "elinewidth": 0.9, "capsize": capsize}
    if not known.any() or high.max() <= _FAR_APART * low.min():
        axes.barh(place, value, xerr=spread, color=colour, height=0.6, error_kw=line)
        axes.set_xlim(left=0.0)
        axes.locator_params(axis="x", nbins=6)
        return
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.errorbar(
        value, place, xerr=spread, color=colour, linestyle="", marker="o", markersize=6, **line
    )
    axes.set(xscale="log", xlim=(low.min() / 2, high.max() * 2))
    axes.xaxis.set_major_locator(LogLocator(numticks=5))
    write_numbers(axes, ",g", "x")
    axes.xaxis.set_minor_formatter(NullFormatter())


def _memory(axes: Axes, frame: Frame, tiers: Sequence[str], place: Floats) -> None:
    left = np.zeros(len(place))
    for tier in tiers:
        size = np.nan_to_num(floats(frame, f"{tier}_gb"))
        per, colour = _TIERS[tier]
        axes.barh(place, size, left=left, color=colour, height=0.6, label=f"{tier}, {per}")
        left += size
    axes.set_xlabel("memory (GB)")
    axes.legend(fontsize=6.5, loc="lower left", bbox_to_anchor=(0.0, 1.0))


def _some(frame: Frame, column: str) -> bool:
    return column in frame and bool(np.isfinite(floats(frame, column)).any())
