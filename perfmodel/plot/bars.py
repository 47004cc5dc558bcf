"""Where the time of a step went, as stacked bars: measured next to predicted."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from perfmodel.arrays import Floats
from perfmodel.errors import UsageError
from perfmodel.plot.style import (
    INK,
    OTHER_COLOUR,
    Entry,
    Frame,
    colours_of,
    draw_legend,
    drawing,
    figure_of,
    floats,
    is_dark,
    readable,
    texts,
    time_axis,
)
from perfmodel.units import human_us

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
    with drawing(WIDTH_IN, height_in) as axes:
        left = np.zeros(len(total))
        for at, name in enumerate(bars.part):
            axes.barh(y, bars.time_us[:, at], left=left, height=0.78, color=colours[name])
            left += bars.time_us[:, at]
        _write_shares(axes, bars, y, colours)
        _dress(axes, bars, y, total)
        axes.set_title(title)
        draw_legend(axes, entries)
    return figure_of(axes)


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
