"""Shares over sizes, such as coverage by the most popular rows: one line per name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from perfmodel.errors import UsageError
from perfmodel.plot.canvas import new_figure
from perfmodel.plot.frames import Frame, floats, texts
from perfmodel.plot.style import FAINT, GRID, colours_of, look

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WIDTH_IN, _HEIGHT_IN = 5.2, 3.4


def shares_figure(frame: Frame, *, size: str, share: str, title: str = "") -> Figure:
    """Draw shares (0 to 1, as percent) over sizes on a logarithmic scale.

    Args:
        frame: columns `name` (one line each), `size` (above 0) and `share`, in the order to join.
        size, share: what the axes say.
        title: heading of the figure.

    Raises `UsageError` for a frame without rows.
    """
    names = np.array(texts(frame, "name"), object)
    if not len(names):
        raise UsageError("no shares to draw")
    sizes, shares = floats(frame, "size"), floats(frame, "share")
    kinds = list(dict.fromkeys(names.tolist()))
    colours = colours_of(kinds)
    with look():
        figure = new_figure(_WIDTH_IN, _HEIGHT_IN)
        axes = figure.subplots()
        for kind in kinds:
            chosen = names == kind
            axes.plot(sizes[chosen], 100.0 * shares[chosen], color=colours[kind], label=kind)
        axes.set_xscale("log")
        axes.set_ylim(0.0, 100.0)
        axes.set_xlabel(size)
        axes.set_ylabel(f"{share} (%)")
        axes.set_title(title)
        axes.grid(color=GRID, linewidth=0.6)
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        axes.spines["bottom"].set_color(FAINT)
        if len(kinds) > 1:
            axes.legend()
    return figure
