"""One quantity over another: curves, quantities that hold their value, shares over sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.errors import UsageError
from perfmodel.plot.figure import Frame, floats, new_figure, open_frame, texts, write_numbers
from perfmodel.plot.style import FAINT, colours_of, look

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_WIDTH_IN, _HEIGHT_IN = 6.4, 4.0
_MAX_OWN_TICKS = 8
"""Up to so many values of a logarithmic axis, its ticks stand at them."""


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
    across, up, name = floats(frame, x), floats(frame, y), np.array(texts(frame, by), object)
    if not len(across):
        raise UsageError("no curve to draw")
    names = list(dict.fromkeys(name.tolist()))
    colours = colours_of(names)
    from matplotlib.ticker import LogLocator, NullFormatter

    with look():
        figure = new_figure(_WIDTH_IN, _HEIGHT_IN)
        axes = figure.subplots()
        for each in names:
            rows = np.flatnonzero(name == each)
            rows = rows[np.argsort(across[rows], kind="stable")]
            axes.plot(
                across[rows], up[rows], color=colours[each], marker="o", markersize=4, label=each
            )
        for letter, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
            if letter in log:
                getattr(axes, f"set_{letter}scale")("log")
                axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
                axis.set_minor_formatter(NullFormatter())
        write_numbers(axes, ",g")
        if "x" in log and len(own := np.unique(across)) <= _MAX_OWN_TICKS:
            axes.set_xticks(own)
            axes.set_xticks([], minor=True)
        if "y" not in log:
            axes.set_ylim(bottom=0.0)
        axes.set(xlabel=labels[0], ylabel=labels[1], title=title)
        open_frame(axes, faint=("left", "bottom"))
        if len(names) > 1:
            axes.legend(title=legend or None)
    return figure


_LEVELS_WIDTH_IN, _PANEL_IN = 8.0, 2.6


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
        figure = new_figure(_LEVELS_WIDTH_IN, 0.6 + _PANEL_IN * len(panels))
        rows = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
        for axes, (panel, lines) in zip(rows, panels.items(), strict=True):
            for name, (across, up) in lines.items():
                axes.step(across, up, where="post", color=colours[name], label=name)
            for at in marks:
                axes.axvline(at, color=FAINT, linewidth=0.8, linestyle=":")
            axes.set_ylim(bottom=0.0)
            axes.set_ylabel(f"{panel} ({labels[1]})")
            open_frame(axes)
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


_SHARES_WIDTH_IN, _SHARES_HEIGHT_IN = 5.2, 3.4


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
        figure = new_figure(_SHARES_WIDTH_IN, _SHARES_HEIGHT_IN)
        axes = figure.subplots()
        for kind in kinds:
            chosen = names == kind
            axes.plot(sizes[chosen], 100.0 * shares[chosen], color=colours[kind], label=kind)
        axes.set_xscale("log")
        axes.set(ylim=(0.0, 100.0), xlabel=size, ylabel=f"{share} (%)", title=title)
        open_frame(axes, faint=("bottom",))
        if len(kinds) > 1:
            axes.legend()
    return figure
