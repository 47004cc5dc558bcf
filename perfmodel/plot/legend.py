"""The legend beside a figure: colours, names, and the time each stands for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.plot.style import INK, colours_of, readable
from perfmodel.units import human_us

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_CAUSES = 8


class Entry(NamedTuple):
    """One line of a legend; without a colour it is a heading."""

    colour: str | None
    text: str


def cause_entries(
    heading: str, cause: NDArray[np.object_], time_us: NDArray[np.float64], window_us: float
) -> list[Entry]:
    """The causes of a lane, longest first, each with its time; the shortest ones together."""
    names, inverse = np.unique(cause.astype(str), return_inverse=True)
    total = np.bincount(inverse, weights=time_us, minlength=len(names))
    order = np.argsort(-total, kind="stable")
    colours = colours_of(names.tolist())
    share_pct = 100 * total.sum() / window_us
    entries = [
        Entry(None, ""),
        Entry(None, f"{heading}: {human_us(total.sum())}, {share_pct:.0f} %"),
    ]
    shown = order if len(order) <= _MOST_CAUSES + 1 else order[:_MOST_CAUSES]
    for at in shown.tolist():
        name = str(names[at])
        entries.append(Entry(colours[name], f"{readable(name)}  {human_us(total[at])}"))
    if len(shown) < len(order):
        rest = order[len(shown) :]
        entries.append(Entry("none", f"{len(rest)} more  {human_us(total[rest].sum())}"))
    return entries


def draw_legend(axes: Axes, entries: list[Entry], *, with_path: bool = False) -> None:
    """Draw the entries beside the axes, on the right."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [Patch(facecolor=e.colour or "none", label=e.text) for e in entries]
    if with_path:
        first_heading = next((i for i, e in enumerate(entries) if e.colour is None), len(entries))
        handles.insert(
            first_heading, Line2D([], [], color=INK, linewidth=1.1, label="critical path")
        )
    if not handles:
        return
    legend = axes.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(1.005, 1.0), borderaxespad=0.0,
        handlelength=1.1, handleheight=0.9, labelspacing=0.35, handletextpad=0.5,
    )  # fmt: skip
    headings = {entry.text for entry in entries if entry.colour is None}
    for text in legend.get_texts():
        if text.get_text() in headings:
            text.set_fontweight("bold")
