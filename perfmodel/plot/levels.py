"""Quantities that hold their value until it changes: panels, and in each a line per quantity."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from perfmodel.plot.canvas import new_figure
from perfmodel.plot.style import FAINT, GRID, colours_of, look

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WIDTH_IN, _PANEL_IN = 8.0, 2.6


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
    names = list(dict.fromkeys(name for lines in panels.values() for name in lines))
    colours = colours_of(names)
    with look():
        figure = new_figure(_WIDTH_IN, 0.6 + _PANEL_IN * len(panels))
        rows = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
        for axes, (panel, lines) in zip(rows, panels.items(), strict=True):
            for name, (across, up) in lines.items():
                axes.step(across, up, where="post", color=colours[name], label=name)
            for at in marks:
                axes.axvline(at, color=FAINT, linewidth=0.8, linestyle=":")
            axes.set_ylim(bottom=0.0)
            axes.set_ylabel(f"{panel} ({labels[1]})")
            axes.grid(color=GRID, linewidth=0.6)
            axes.set_axisbelow(True)
            for side in ("top", "right"):
                axes.spines[side].set_visible(False)
        for at, name in marks.items():
            rows[0].annotate(
                name,
                (at, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(3, 2),
                textcoords="offset points",
                fontsize="x-small",
                color=FAINT,
            )
        rows[-1].set_xlabel(labels[0])
        rows[0].set_title(title, pad=14)
        if len(names) > 1:
            rows[0].legend(loc="upper right")
    return figure
