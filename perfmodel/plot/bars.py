"""Bars: where the time of a step went."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.base.units import human_us
from perfmodel.errors import UsageError
from perfmodel.plot import style
from perfmodel.plot.names import readable
from perfmodel.plot.style import Entry, Frame

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


WIDTH_IN = 11.0
OTHER_PARTS = "all others"
_BAR_IN = 0.36
_AXES_WIDTH_IN = 6.5
_CHARACTER_IN = 0.056
_ROOM_FRAC = 0.16
_SMALL_FRAC = 0.005
_MAX_PARTS = 16


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
        Entry(colours[part], readable(part) + (f"  {human_us(us)}" if len(bars) == 1 else ""))
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
                full = f"{readable(part)} {share}"
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
