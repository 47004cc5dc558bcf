"""Bars: where the time of a step went, designs side by side, what moves a figure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.units import human_us
from perfmodel.errors import UsageError
from perfmodel.plot import style
from perfmodel.plot.style import Entry, Frame

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


WIDTH_IN = 11.0
OTHER_PARTS = "all others"
_BAR_IN, _ROW_IN = 0.36, 0.42
_AXES_WIDTH_IN = 6.5
_CHARACTER_IN = 0.056
_ROOM_FRAC = 0.16
_SMALL_FRAC = 0.005
_MAX_PARTS = 16
_TIERS = {
    "hbm": ("per rank", style.FURTHER_COLOURS[1]),
    "dram": ("per rank", style.FURTHER_COLOURS[0]),
    "host": ("per node", style.FURTHER_COLOURS[4]),
    "storage": ("per node", style.FURTHER_COLOURS[3]),
    "nic": ("per node", style.FURTHER_COLOURS[7]),
}
"""Memory by tier: what it is counted per, and its colour."""
_WHY_CHARACTERS = 64
_MONEY = (("kwh_per_million_samples", "Wh", 1e3), ("usd_per_million_samples", "US cents", 1e2))
_FAR_APART = 8.0
"""From this ratio on, values are points on a logarithmic axis, where bars would start nowhere."""


def breakdown_figure(frame: Frame, *, title: str = "") -> Figure:
    """Draw one horizontal bar per step and source, stacked by part.

    Args:
        frame: columns `part` (cause, kernel family, scope) and `time_us`; `step` (name, default
            one step) and `source` (such as `measured`, `predicted`) where there are several. One
            row per part of a bar; parts that appear twice in a bar add up.
        title: heading of the figure.

    Parts keep one order and one colour in all bars. Parts below 0.5 % of every bar, and those
    beyond the 16 largest, are one part. A bar ends with its total, and a second source of a step
    with its difference from the first. Raises `UsageError` where a column is missing, a time is
    negative or no number, or there is no row.
    """
    table = _parts_by_bar(frame)
    parts, bars, time_us = list(table.columns), list(table.index), table.to_numpy(float)
    total, ends = time_us.sum(axis=1), time_us.cumsum(axis=1)
    colours = style.colours_of(parts) | {OTHER_PARTS: style.OTHER_COLOUR}
    y = -np.cumsum([0.0, *(1.0 if one[0] == other[0] else 1.5 for one, other in pairwise(bars))])
    entries = [
        Entry(colours[part], style.readable(part) + (f"  {human_us(us)}" if len(bars) == 1 else ""))
        for part, us in zip(parts, time_us.sum(axis=0).tolist(), strict=True)
    ]
    height_in = max(_BAR_IN * (y[0] - y[-1] + 1) + 1.1, 0.168 * len(entries) + 0.7, 1.8)
    per_in = _AXES_WIDTH_IN / ((1 + _ROOM_FRAC) * (total.max() or np.inf))
    with style.panels(WIDTH_IN, height_in) as (figure, (axes,)):
        for at, part in enumerate(parts):
            us, colour = time_us[:, at], colours[part]
            axes.barh(y, us, left=ends[:, at] - us, height=0.78, color=colour)
            for row in np.flatnonzero(total > 0).tolist():
                room = int(us[row] * per_in / _CHARACTER_IN) - 1
                share = f"{100 * us[row] / total[row]:.0f} %"
                full = f"{style.readable(part)} {share}"
                text = full if len(full) <= room else share if len(share) <= room else ""
                if text:
                    axes.text(
                        ends[row, at] - us[row] / 2, y[row], text, ha="center", va="center",
                        fontsize=6.5, color=style.text_colour(colour),
                    )  # fmt: skip
        first: dict[str, float] = {}
        for (step, _), height, us in zip(bars, y.tolist(), total.tolist(), strict=True):
            text = human_us(us)
            if first.get(step, 0.0) > 0:
                text += f"  ({100 * (us / first[step] - 1):+.1f} %)"
            first.setdefault(step, us)
            axes.annotate(
                text, (us, height), xytext=(3, 0), textcoords="offset points", ha="left",
                va="center", fontsize=7.5, color=style.INK,
            )  # fmt: skip
        several = len(first) > 1 or not any(source for _, source in bars)
        names = [[step if several else "", source] for step, source in bars]
        axes.set_yticks(y, ["  ".join(filter(None, words)) for words in names])
        axes.set_ylim(y[-1] - 0.7, y[0] + 0.7)
        longest_us = float(total.max()) or 1.0
        style.time_axis(axes, longest_us, "time", most_ticks=8, room_frac=_ROOM_FRAC)
        axes.set_title(title)
        style.draw_legend(axes, entries)
    return figure


def _parts_by_bar(frame: Frame) -> pd.DataFrame:
    """Microseconds, a row per bar and a column per part; what is small in every bar, or beyond the
    largest parts, is one at the end."""
    import pandas as pd

    part = style.texts(frame, "part", "there is no time to draw: the frame is empty")
    time_us = style.floats(frame, "time_us")
    if not (np.isfinite(time_us) & (time_us >= 0)).all():
        raise UsageError("column 'time_us': a part of a bar is a time of 0 us or more")
    by = {name: style.texts(frame, name) if name in frame else "" for name in ("step", "source")}
    rows = pd.DataFrame(by | {"part": part, "time_us": time_us})
    table = rows.groupby(["step", "source", "part"], sort=False).time_us.sum().unstack(fill_value=0)
    steps = list(dict.fromkeys(rows.step))
    bars = dict.fromkeys(zip(rows.step, rows.source, strict=True))
    table = table.loc[sorted(bars, key=lambda bar: steps.index(bar[0])), list(dict.fromkeys(part))]
    total = table.sum(axis=1)
    share = table.div(total.where(total > 0, 1.0), axis=0).max()
    is_kept = (share.rank(ascending=False, method="first") <= _MAX_PARTS) & (share >= _SMALL_FRAC)
    if (~is_kept).sum() <= 1:
        is_kept = share > 0
    rest = table.loc[:, ~is_kept].sum(axis=1)
    table = table.loc[:, is_kept]
    return table.assign(**{OTHER_PARTS: rest}) if rest.sum() > 0 else table


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
    down, up = style.FURTHER_COLOURS[1], style.FURTHER_COLOURS[0]
    with style.panels(6.0, 1.3 + _BAR_IN * len(order)) as (figure, (axes,)):
        axes.barh(place + half / 2, low[order], color=down, height=half, label="lower")
        axes.barh(place - half / 2, high[order], color=up, height=half, label="higher")
        axes.axvline(0.0, color=style.INK, linewidth=0.8)
        axes.set_yticks(place, [names[at] for at in order.tolist()])
        axes.set(title=title, xlabel=label)
        axes.legend(loc="lower right")
        style.open_frame(axes)
    return figure


def comparison_figure(frame: Frame, *, title: str = "") -> Figure:
    """Draw one row per design.

    Args:
        frame: columns `design`, `step_us`, `low_us`, `high_us`, `why_not`, and where they are
            there `kwh_per_million_samples`, `usd_per_million_samples` and `TIER_gb`; a design that
            cannot be has no `step_us`.
        title: heading of the figure.

    Raises `UsageError` where there is no design.
    """

    def is_known(column: str) -> bool:
        return column in frame and bool(np.isfinite(style.floats(frame, column)).any())

    names = style.texts(frame, "design", "no designs to draw").tolist()
    money = [each for each in _MONEY if is_known(each[0])]
    tiers = [tier for tier in _TIERS if is_known(f"{tier}_gb")]
    place = np.arange(len(names), dtype=np.float64)
    ratios = [2.2, *[1.0] * (bool(tiers) + len(money))]
    height_in, shape = 1.5 + _ROW_IN * len(names), {"sharey": True, "width_ratios": ratios}
    with style.panels(WIDTH_IN, height_in, 1, len(ratios), **shape) as (figure, every):
        first, *others = every
        step, low, high = (style.floats(frame, name) for name in ("step_us", "low_us", "high_us"))
        scale, unit = style.time_unit(float(np.nanmax(high)) if np.isfinite(high).any() else 1.0)
        known = np.isfinite(step)
        step, low, high = step / scale, low / scale, high / scale
        _values(first, place, step, low, high, colour=style.FURTHER_COLOURS[0])
        for at, why in zip(place[~known], style.texts(frame, "why_not")[~known], strict=True):
            text = f" cannot be: {shorten(str(why), _WHY_CHARACTERS, placeholder=' …')}"
            by_row: dict[str, Any] = {"transform": first.get_yaxis_transform(), "fontsize": 7.0}
            first.text(0.0, at, text, va="center", color=style.FAINT, **by_row)
        first.set_xlabel(f"step ({unit}), 90 % interval")
        first.set_yticks(place, names)
        first.invert_yaxis()
        if tiers:
            memory, left = others.pop(0), np.zeros(len(place))
            for tier in tiers:
                size, (per, colour) = np.nan_to_num(style.floats(frame, f"{tier}_gb")), _TIERS[tier]
                memory.barh(
                    place, size, left=left, color=colour, height=0.6, label=f"{tier}, {per}"
                )
                left += size
            memory.set_xlabel("memory (GB)")
            memory.legend(fontsize=6.5, loc="lower left", bbox_to_anchor=(0.0, 1.0))
        for axes, (column, unit, per_unit) in zip(others, money, strict=True):
            value = per_unit * style.floats(frame, column)
            _values(axes, place, value, value, value, colour=style.FURTHER_COLOURS[2])
            axes.set_xlabel(f"{unit} per million samples")
        for axes in every:
            style.open_frame(axes, grid="x")
        figure.suptitle(title, fontsize=10.0, fontweight="bold", x=0.01, ha="left")
    return figure


def _values(
    axes: Axes, place: Floats, value: Floats, low: Floats, high: Floats, *, colour: str
) -> None:
    """Values with their intervals: bars from 0, or points where they are far apart."""
    known = np.isfinite(value)
    place, value, low, high = place[known], value[known], low[known], high[known]
    spread = np.stack([value - low, high - value])
    line: dict[str, Any] = {"ecolor": style.INK, "elinewidth": 0.9, "capsize": 2.0 * spread.any()}
    if not known.any() or high.max() <= _FAR_APART * low.min():
        axes.barh(place, value, xerr=spread, color=colour, height=0.6, error_kw=line)
        axes.set_xlim(left=0.0)
        axes.locator_params(axis="x", nbins=6)
        return
    from matplotlib.ticker import LogLocator

    points: dict[str, Any] = {"color": colour, "linestyle": "", "marker": "o", "markersize": 6}
    axes.errorbar(value, place, xerr=spread, **points, **line)
    style.write_numbers(axes, ",g", "x", log="x")
    axes.set_xlim(low.min() / 2, high.max() * 2)
    axes.xaxis.set_major_locator(LogLocator(numticks=5))
