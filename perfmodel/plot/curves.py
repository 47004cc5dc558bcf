"""One quantity over another: curves with their ranges, quantities that hold their value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.plot.style import (
    FAINT,
    Frame,
    colours_of,
    floats,
    log_axes,
    open_frame,
    panels,
    texts,
    write_numbers,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_MAX_OWN_TICKS = 8
"""Up to so many values of a logarithmic axis, its ticks stand at them."""
_MAX_MARKED = 40
"""Points of a curve that are marked, at most."""
_LEVELS_WIDTH_IN, _PANEL_IN = 8.0, 2.6


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
    band: tuple[str, str] | None = None,
) -> Figure:
    """Draw column `y` over `x`, a curve for each name in the column `by`.

    Args:
        frame: the columns; rows whose `y` is NaN are gaps.
        labels: of the two axes, units in them.
        legend: heading of the names, where they do not speak for themselves.
        log: which axes are logarithmic (`x`, `y` or `xy`).
        band: columns of the least and the largest values, drawn as an area.

    Raises `UsageError` for a frame without rows.
    """
    name = texts(frame, by, "no curve to draw")
    across, up = floats(frame, x), floats(frame, y)
    with panels(6.4, 4.0) as (figure, (axes,)):
        for each, colour in colours_of(name.tolist()).items():
            rows = np.flatnonzero(name == each)
            rows = rows[np.argsort(across[rows], kind="stable")]
            marker = "o" if len(rows) <= _MAX_MARKED else ""
            line: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 4}
            axes.plot(across[rows], up[rows], label=each, **line)
            if band:
                low, high = (floats(frame, column)[rows] for column in band)
                area: dict[str, Any] = {"color": colour, "alpha": 0.15, "linewidth": 0}
                axes.fill_between(across[rows], low, high, label="range", **area)
        log_axes(axes, log)
        write_numbers(axes, ",.12g")
        if "x" in log and len(own := np.unique(across)) <= _MAX_OWN_TICKS:
            axes.set_xticks(own)
            axes.set_xticks([], minor=True)
        if "y" not in log:
            axes.set_ylim(bottom=0.0)
        axes.set(xlabel=labels[0], ylabel=labels[1], title=title)
        open_frame(axes)
        if len(axes.lines) > 1 or band:
            axes.legend(title=legend or None)
    return figure


def steps_figure(
    levels: Mapping[str, Mapping[str, tuple[Any, Any]]],
    *,
    marks: Mapping[float, str],
    labels: tuple[str, str],
    title: str = "",
) -> Figure:
    """Draw `{panel: {quantity: (x, y)}}`, panels one below the other on one x axis.

    `marks` are named positions on the x axis; `labels` are those of the axes, units in them.
    """
    colours = colours_of(name for lines in levels.values() for name in lines)
    height_in = 0.6 + _PANEL_IN * len(levels)
    with panels(_LEVELS_WIDTH_IN, height_in, len(levels), sharex=True) as (figure, rows):
        for axes, (panel, lines) in zip(rows, levels.items(), strict=True):
            for name, (across, up) in lines.items():
                axes.step(across, up, where="post", color=colours[name], label=name)
            for at in marks:
                axes.axvline(at, color=FAINT, linewidth=0.8, linestyle=":")
            axes.set(ylim=(0.0, None), ylabel=f"{panel} ({labels[1]})")
            open_frame(axes)
        for at, name in marks.items():
            rows[0].annotate(
                name, (at, 1.0), xycoords=("data", "axes fraction"), xytext=(3, 2),
                textcoords="offset points", fontsize="x-small", color=FAINT,
            )  # fmt: skip
        rows[-1].set_xlabel(labels[0])
        rows[0].set_title(title, pad=14)
        if len(colours) > 1:
            rows[0].legend(loc="upper right")
    return figure
