"""One quantity over another: curves, quantities that hold their value, shares over sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.plot.style import (
    FAINT,
    Frame,
    colours_of,
    drawing,
    figure_of,
    floats,
    log_axes,
    look,
    new_figure,
    open_frame,
    texts,
    write_numbers,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_MAX_OWN_TICKS = 8
"""Up to so many values of a logarithmic axis, its ticks stand at them."""
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
) -> Figure:
    """Draw column `y` over `x`, a curve for each name in the column `by`.

    Args:
        frame: the three columns; rows whose `y` is NaN are gaps.
        labels: of the two axes, units in them.
        legend: heading of the names, where they do not speak for themselves.
        log: which axes are logarithmic (`x`, `y` or `xy`).

    Raises `UsageError` for a frame without rows.
    """
    name = texts(frame, by, "no curve to draw")
    across, up = floats(frame, x), floats(frame, y)
    with drawing(6.4, 4.0) as axes:
        for each, colour in colours_of(name.tolist()).items():
            rows = np.flatnonzero(name == each)
            rows = rows[np.argsort(across[rows], kind="stable")]
            axes.plot(across[rows], up[rows], color=colour, marker="o", markersize=4, label=each)
        log_axes(axes, log)
        write_numbers(axes, ",g")
        if "x" in log and len(own := np.unique(across)) <= _MAX_OWN_TICKS:
            axes.set_xticks(own)
            axes.set_xticks([], minor=True)
        if "y" not in log:
            axes.set_ylim(bottom=0.0)
        axes.set(xlabel=labels[0], ylabel=labels[1], title=title)
        open_frame(axes, faint=("left", "bottom"))
        if len(axes.lines) > 1:
            axes.legend(title=legend or None)
    return figure_of(axes)


def shares_figure(frame: Frame, *, size: str, share: str, title: str = "") -> Figure:
    """Draw shares (0 to 1, as percent) over sizes on a logarithmic scale.

    Args:
        frame: columns `name` (one line each), `size` (above 0) and `share`, in the order to join.
        size, share: what the axes say.
        title: heading of the figure.

    Raises `UsageError` for a frame without rows.
    """
    name = texts(frame, "name", "no shares to draw")
    sizes, percents = floats(frame, "size"), 100.0 * floats(frame, "share")
    with drawing(5.2, 3.4) as axes:
        for each, colour in colours_of(name.tolist()).items():
            axes.plot(sizes[name == each], percents[name == each], color=colour, label=each)
        axes.set(xscale="log", ylim=(0.0, 100.0), xlabel=size, ylabel=f"{share} (%)", title=title)
        open_frame(axes, faint=("bottom",))
        if len(axes.lines) > 1:
            axes.legend()
    return figure_of(axes)


def steps_figure(
    panels: Mapping[str, Mapping[str, tuple[Any, Any]]],
    *,
    marks: Mapping[float, str],
    labels: tuple[str, str],
    title: str = "",
) -> Figure:
    """Draw `{panel: {quantity: (x, y)}}`, panels one below the other on one x axis.

    `marks` are named positions on the x axis; `labels` are those of the axes, units in them.
    """
    colours = colours_of(name for lines in panels.values() for name in lines)
    with look():
        figure = new_figure(_LEVELS_WIDTH_IN, 0.6 + _PANEL_IN * len(panels))
        rows = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
        for axes, (panel, lines) in zip(rows, panels.items(), strict=True):
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
