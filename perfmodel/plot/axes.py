"""The axis of time that all figures share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from perfmodel.plot.frames import time_unit
from perfmodel.plot.style import FAINT, GRID

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def time_axis(axes: Axes, span_us: float, text: str, *, most_ticks: int, room_frac: float) -> None:
    """Make x an axis of time from 0 to `span_us` and `room_frac` of it more, in its best unit.

    Data stay in microseconds; the ticks stand at round numbers of the unit.
    """
    from matplotlib.ticker import MaxNLocator

    per_unit, unit = time_unit(span_us)
    limit_us = (1 + room_frac) * span_us
    locator = MaxNLocator(nbins=most_ticks, steps=[1, 2, 2.5, 5, 10])
    values = np.asarray(locator.tick_values(0, span_us / per_unit), dtype=np.float64)
    values = values[values * per_unit <= limit_us]
    axes.set_xlim(0, limit_us)
    axes.set_xticks(values * per_unit, [f"{value:g}" for value in values.tolist()])
    axes.set_xlabel(f"{text} ({unit})")
    axes.grid(axis="x", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
