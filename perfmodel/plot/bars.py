"""Bars: where the time of a step went, designs side by side, what moves a figure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from textwrap import shorten
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.units import human_us
from perfmodel.errors import UsageError
from perfmodel.plot.style import (
    FAINT,
    FURTHER_COLOURS,
    INK,
    OTHER_COLOUR,
    Entry,
    Frame,
    colours_of,
    draw_legend,
    floats,
    is_dark,
    log_axes,
    open_frame,
    panels,
    readable,
    texts,
    time_axis,
    time_unit,
    title_above,
    write_numbers,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


WIDTH_IN = 11.0
OTHER_PARTS = "all others"
_BAR_IN = 0.36
_AXES_WIDTH_IN = 6.5
_CHARACTER_IN = 0.056
_ROOM_FRAC = 0.16
_SMALL_FRAC = 0.005
_MAX_PARTS = 16


class _Bars(NamedTuple):
    """Bars from top to bottom, and their parts from left to right."""

    step: list[str]
    source: list[str]
    part: list[str]
    time_us: Floats
    """`[bar, part]`."""


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
    bars = _merge_small(_bars(frame))
    colours = colours_of(name for name in bars.part if name != OTHER_PARTS)
    colours[OTHER_PARTS] = OTHER_COLOUR
    y = [0.0]
    for before, step in pairwise(bars.step):
        y.append(y[-1] - (1.0 if before == step else 1.5))
    total = bars.time_us.sum(axis=1)
    shares = bars.time_us.sum(axis=0)
    times = [f"  {human_us(value)}" if len(total) == 1 else "" for value in shares.tolist()]
    entries = [
        Entry(colours[name], readable(name) + time)
        for name, time in zip(bars.part, times, strict=True)
    ]
    height_in = max(_BAR_IN * (y[0] - y[-1] + 1) + 1.1, 0.168 * len(entries) + 0.7, 1.8)
    with panels(WIDTH_IN, height_in) as (figure, (axes,)):
        left = np.zeros(len(total))
        for at, name in enumerate(bars.part):
            axes.barh(y, bars.time_us[:, at], left=left, height=0.78, color=colours[name])
            left += bars.time_us[:, at]
        _write_shares(axes, bars, y, colours)
        _dress(axes, bars, y, total)
        axes.set_title(title)
        draw_legend(axes, entries)
    return figure


def _bars(frame: Frame) -> _Bars:
    part = texts(frame, "part", "there is no time to draw: the frame is empty")
    time_us = floats(frame, "time_us")
    if not (np.isfinite(time_us) & (time_us >= 0)).all():
        raise UsageError("column 'time_us': a part of a bar is a time of 0 us or more")
    step, source = (
        texts(frame, name).tolist() if name in frame else [""] * len(part)
        for name in ("step", "source")
    )
    steps = list(dict.fromkeys(step))
    bars = sorted(dict.fromkeys(zip(step, source, strict=True)), key=lambda b: steps.index(b[0]))
    parts = list(dict.fromkeys(part.tolist()))
    total = np.zeros((len(bars), len(parts)))
    rows = [bars.index(bar) for bar in zip(step, source, strict=True)]
    np.add.at(total, (rows, [parts.index(name) for name in part.tolist()]), time_us)
    return _Bars([bar[0] for bar in bars], [bar[1] for bar in bars], parts, total)


def _merge_small(bars: _Bars) -> _Bars:
    """Parts that are small in every bar, and those beyond the largest, as one at the end."""
    total = bars.time_us.sum(axis=1, keepdims=True)
    share = (bars.time_us / np.where(total > 0, total, 1.0)).max(axis=0)
    largest = np.argsort(-share, kind="stable")[:_MAX_PARTS]
    kept = np.zeros(len(share), bool)
    kept[largest] = share[largest] >= _SMALL_FRAC
    if (~kept).sum() <= 1:
        kept = share > 0
    names = [name for name, keep in zip(bars.part, kept, strict=True) if keep]
    columns = bars.time_us[:, kept]
    if not kept.all() and bars.time_us[:, ~kept].sum() > 0:
        names.append(OTHER_PARTS)
        rest = bars.time_us[:, ~kept].sum(axis=1, keepdims=True)
        columns = np.concatenate([columns, rest], axis=1)
    return bars._replace(part=names, time_us=columns)


def _write_shares(axes: Axes, bars: _Bars, y: list[float], colours: dict[str, str]) -> None:
    """The share of each part that has room for it."""
    total = bars.time_us.sum(axis=1)
    per_in = _AXES_WIDTH_IN / ((1 + _ROOM_FRAC) * total.max()) if total.max() > 0 else 0.0
    ends = np.cumsum(bars.time_us, axis=1)
    for row, height in enumerate(y):
        for at, name in enumerate(bars.part):
            time_us = float(bars.time_us[row, at])
            room = int(time_us * per_in / _CHARACTER_IN) - 1
            share = f"{100 * time_us / total[row]:.0f} %" if total[row] > 0 else ""
            full = f"{readable(name)} {share}"
            text = full if len(full) <= room else share if len(share) <= room else ""
            if text:
                colour = "white" if is_dark(colours[name]) else INK
                axes.text(
                    ends[row, at] - time_us / 2, height, text,
                    ha="center", va="center", fontsize=6.5, color=colour,
                )  # fmt: skip


def _dress(axes: Axes, bars: _Bars, y: list[float], total: Floats) -> None:
    """Names and totals of the bars, and the axis."""
    first: dict[str, float] = {}
    for step, height, time_us in zip(bars.step, y, total.tolist(), strict=True):
        text = human_us(time_us)
        if step in first and first[step] > 0:
            text += f"  ({100 * (time_us / first[step] - 1):+.1f} %)"
        first.setdefault(step, time_us)
        axes.annotate(
            text, (time_us, height), xytext=(3, 0), textcoords="offset points", ha="left",
            va="center", fontsize=7.5, color=INK,
        )  # fmt: skip
    several = len(first) > 1 or not any(bars.source)
    names = [
        "  ".join(word for word in (step if several else "", source) if word)
        for step, source in zip(bars.step, bars.source, strict=True)
    ]
    axes.set_yticks(y, names)
    axes.set_ylim(y[-1] - 0.7, y[0] + 0.7)
    time_axis(axes, float(total.max()) or 1.0, "time", most_ticks=8, room_frac=_ROOM_FRAC)


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
    down, up = FURTHER_COLOURS[1], FURTHER_COLOURS[0]
    with panels(6.0, 1.3 + _BAR_IN * len(order)) as (figure, (axes,)):
        axes.barh(place + half / 2, low[order], color=down, height=half, label="lower")
        axes.barh(place - half / 2, high[order], color=up, height=half, label="higher")
        axes.axvline(0.0, color=INK, linewidth=0.8)
        axes.set_yticks(place, [names[at] for at in order.tolist()])
        axes.set(title=title, xlabel=label)
        axes.legend(loc="lower right")
        open_frame(axes)
    return figure


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
    ratios = [2.2, *[1.0] * (bool(tiers) + len(money))]
    height_in, shape = 1.5 + _ROW_IN * len(names), {"sharey": True, "width_ratios": ratios}
    with panels(_PANELS_IN, height_in, 1, len(ratios), **shape) as (figure, every):
        first, *others = every
        _steps(first, frame, place)
        first.set_yticks(place, names)
        first.invert_yaxis()
        if tiers:
            _memory(others.pop(0), frame, tiers, place)
        for axes, (column, unit, per_unit) in zip(others, money, strict=True):
            value = per_unit * floats(frame, column)
            _values(axes, place, value, value, value, colour=FURTHER_COLOURS[2])
            axes.set_xlabel(f"{unit} per million samples")
        for axes in every:
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
    from matplotlib.ticker import LogLocator

    axes.errorbar(
        value, place, xerr=spread, color=colour, linestyle="", marker="o", markersize=6, **line
    )
    log_axes(axes, "x")
    axes.set_xlim(low.min() / 2, high.max() * 2)
    axes.xaxis.set_major_locator(LogLocator(numticks=5))
    write_numbers(axes, ",g", "x")


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
