"""Designs side by side: step time, memory by tier, energy and money; what cannot be says why."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import shorten
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import UsageError
from perfmodel.plot.canvas import new_figure
from perfmodel.plot.frames import Frame, floats, texts, time_unit
from perfmodel.plot.style import FAINT, FURTHER_COLOURS, GRID, INK, look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]
_WIDTH_IN, _ROW_IN = 11.0, 0.42
_TIERS = ("hbm", "dram", "host", "storage", "nic")
_WHY_CHARACTERS = 64
_MONEY = (("kwh_per_million_samples", "Wh", 1e3), ("usd_per_million_samples", "US cents", 1e2))
_FAR_APART = 8.0
"""From this ratio of step times on, their axis is logarithmic."""


def comparison_figure(frame: Frame, *, title: str = "") -> Figure:
    """Draw one row per design.

    Args:
        frame: columns `design`, `step_us`, `low_us`, `high_us`, `why_not`, and where they are
            there `kwh_per_million_samples`, `usd_per_million_samples` and `TIER_gb`; a design that
            cannot be has no `step_us`.
        title: heading of the figure.

    Raises `UsageError` where there is no design.
    """
    names = texts(frame, "design").tolist()
    if not names:
        raise UsageError("no designs to draw")
    money = [each for each in _MONEY if _some(frame, each[0])]
    tiers = [tier for tier in _TIERS if _some(frame, f"{tier}_gb")]
    place = np.arange(len(names), dtype=np.float64)
    with look():
        figure = new_figure(_WIDTH_IN, 1.5 + _ROW_IN * len(names))
        panels = 1 + bool(tiers) + len(money)
        ratios = [2.2, *[1.0] * (panels - 1)]
        every = np.atleast_1d(figure.subplots(1, panels, sharey=True, width_ratios=ratios))
        first, *others = every.tolist()
        _steps(first, frame, place)
        first.set_yticks(place, names)
        first.invert_yaxis()
        if tiers:
            _memory(others.pop(0), frame, tiers, place)
        for axes, (column, unit, per_unit) in zip(others, money, strict=True):
            axes.barh(place, per_unit * _known(frame, column), color=FURTHER_COLOURS[2], height=0.6)
            axes.set_xlabel(f"{unit} per million samples")
            axes.locator_params(axis="x", nbins=4)
        for axes in every:
            axes.grid(axis="x", color=GRID, linewidth=0.6)
            axes.set_axisbelow(True)
            for side in ("top", "right"):
                axes.spines[side].set_visible(False)
        figure.suptitle(title, fontsize=10.0, fontweight="bold", x=0.01, ha="left")
    return figure


def _steps(axes: Axes, frame: Frame, place: Floats) -> None:
    """Bars of step time with their intervals; a text where there is none."""
    step, low, high = (floats(frame, name) for name in ("step_us", "low_us", "high_us"))
    longest = float(np.nanmax(high)) if np.isfinite(high).any() else 1.0
    scale, unit = time_unit(longest)
    known = np.isfinite(step)
    spread = np.stack([step - low, high - step])[:, known] / scale
    axes.barh(
        place[known],
        step[known] / scale,
        xerr=spread,
        color=FURTHER_COLOURS[0],
        height=0.6,
        error_kw={"ecolor": INK, "elinewidth": 0.9, "capsize": 2.0},
    )
    for at, why in zip(place[~known], texts(frame, "why_not")[~known], strict=True):
        text = shorten(str(why), _WHY_CHARACTERS, placeholder=" …")
        axes.text(
            *(0.0, at, f" cannot be: {text}"),
            va="center",
            color=FAINT,
            fontsize=7.0,
            transform=axes.get_yaxis_transform(),
        )
    axes.set_xlabel(f"step ({unit}), 90 % interval")
    shortest = float(np.nanmin(low)) if known.any() else longest
    if longest > _FAR_APART * shortest:
        from matplotlib.ticker import LogLocator, NullFormatter

        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlim(left=shortest / scale / 2)
    else:
        axes.set_xlim(left=0.0)


def _memory(axes: Axes, frame: Frame, tiers: Sequence[str], place: Floats) -> None:
    left = np.zeros(len(place))
    for tier in tiers:
        size = _known(frame, f"{tier}_gb")
        colour = FURTHER_COLOURS[(1, 0, 4, 3, 7)[_TIERS.index(tier)]]
        axes.barh(place, size, left=left, color=colour, height=0.6, label=tier)
        left += size
    axes.set_xlabel("GB (hbm, dram: per rank)")
    axes.legend(fontsize=6.5)


def _some(frame: Frame, column: str) -> bool:
    return column in frame and bool(np.isfinite(floats(frame, column)).any())


def _known(frame: Frame, column: str) -> Floats:
    return np.nan_to_num(floats(frame, column))
