"""One quantity over another: curves, points and fronts; bars of where time went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.base.arrays import Floats, Ints
from perfmodel.base.units import human_us
from perfmodel.errors import UsageError
from perfmodel.plot import style
from perfmodel.plot.names import readable
from perfmodel.plot.style import Entry, Frame

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_MAX_OWN_TICKS = 8
"""Up to so many values of a logarithmic axis, its ticks stand at them."""
_MAX_MARKED, _MAX_NUMBERED = 40, 12
"""Points of a curve that are marked, and of a front that are numbered, at most."""
_CLOUD = 20_000
"""Points drawn at most below a front: of more, an even share."""


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
) -> Figure:
    """Draw column `y` over `x`, a curve for each name in the column `by`; a `y` of NaN is a gap.

    `labels` are of the two axes, with units; `legend` heads the names, where they do not speak for
    themselves; axes of `log` (`x`, `y`, `xy`) are logarithmic. Raises `UsageError` for a frame
    without rows.
    """
    name = style.texts(frame, by)
    if not len(name):
        raise UsageError("no curve to draw")
    across, up = style.floats(frame, x), style.floats(frame, y)
    with style.panels(6.4, 4.0) as (figure, (axes,)):
        for each, colour in style.colours_of(name.tolist()).items():
            rows = np.flatnonzero(name == each)
            rows = rows[np.argsort(across[rows], kind="stable")]
            marker = "o" if len(rows) <= _MAX_MARKED else ""
            line: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 4}
            axes.plot(across[rows], up[rows], label=each, **line)
        style.write_numbers(axes, log)
        if "x" in log and len(own := np.unique(across)) <= _MAX_OWN_TICKS:
            axes.set_xticks(own)
            axes.set_xticks([], minor=True)
        if "y" not in log:
            axes.set_ylim(bottom=0.0)
        axes.set(xlabel=labels[0], ylabel=labels[1], title=title)
        if len(axes.lines) > 1:
            axes.legend(title=legend or None)
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
        dots: dict[str, Any] = {"s": 8, "color": style.FAINT, "alpha": 0.5, "linewidth": 0}
        axes.scatter(across[shown], up[shown], rasterized=True, **dots)
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
        style.write_numbers(axes)
        axes.set(xlabel=labels[0], ylabel=labels[1])
    return figure


WIDTH_IN = 11.0
_BAR_IN = 0.36
_AXES_WIDTH_IN = 6.5
_CHARACTER_IN = 0.056
_ROOM_FRAC = 0.16


def breakdown_figure(bars: Mapping[str, Mapping[str, float]], *, title: str = "") -> Figure:
    """Draw one horizontal bar per name (`measured`, `predicted`, a design), stacked by part (cause,
    kernel family), in microseconds; names without parts have none.

    Parts keep one order and one colour in all bars. A bar ends with its total, and all but the
    first with their difference from it. Raises `UsageError` where a time is negative or no number,
    or there is none.
    """
    names = [name for name, parts in bars.items() if parts]
    every = dict.fromkeys(chain.from_iterable(bars.values()))
    parts = [part for part in every if any(bars[name].get(part) for name in names)]
    if not parts:
        raise UsageError("there is no time to draw")
    time_us = np.array([[bars[name].get(part, 0.0) for part in parts] for name in names])
    if not (np.isfinite(time_us) & (time_us >= 0)).all():
        raise UsageError("a part of a bar is a time of 0 us or more")
    total, ends = time_us.sum(axis=1), time_us.cumsum(axis=1)
    colours = style.colours_of(parts)
    y = -np.arange(float(len(names)))
    entries = [
        Entry(colours[part], readable(part) + (f"  {human_us(us)}" if len(bars) == 1 else ""))
        for part, us in zip(parts, time_us.sum(axis=0).tolist(), strict=True)
    ]
    height_in = max(_BAR_IN * len(names) + 1.1, 0.168 * len(entries) + 0.7, 1.8)
    per_in = _AXES_WIDTH_IN / ((1 + _ROOM_FRAC) * (total.max() or np.inf))
    with style.panels(WIDTH_IN, height_in) as (figure, (axes,)):
        for at, part in enumerate(parts):
            us, colour = time_us[:, at], colours[part]
            drawn = axes.barh(y, us, left=ends[:, at] - us, height=0.78, color=colour)
            labels = [""] * len(names)
            for row in np.flatnonzero(total > 0).tolist():
                room = int(us[row] * per_in / _CHARACTER_IN) - 1
                share = f"{100 * us[row] / total[row]:.0f} %"
                full = f"{readable(part)} {share}"
                labels[row] = full if len(full) <= room else share if len(share) <= room else ""
            about: dict[str, Any] = {"fontsize": 6.5, "color": style.text_colour(colour)}
            axes.bar_label(drawn, labels, label_type="center", **about)
        labels = [human_us(us) for us in total.tolist()]
        if total[0] > 0:
            others = zip(labels[1:], (100 * (total[1:] / total[0] - 1)).tolist(), strict=True)
            labels[1:] = [f"{label}  ({change_pct:+.1f} %)" for label, change_pct in others]
        axes.bar_label(drawn, labels, padding=3, fontsize=7.5, color=style.INK)
        axes.set_yticks(y, names)
        axes.set_ylim(y[-1] - 0.7, y[0] + 0.7)
        longest_us = float(total.max()) or 1.0
        style.time_axis(axes, longest_us, "time", most_ticks=8, room_frac=_ROOM_FRAC)
        axes.set_title(title)
        style.draw_legend(axes, entries)
    return figure
