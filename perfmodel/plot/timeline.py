"""The timeline of a step: host threads on top, streams below, idle time and critical path.

Pieces narrower than a pixel cannot be drawn one by one without hiding each other. A lane is cut
into bins instead, and in each bin a colour is as high as its share of the time, so that the
coloured area is the time itself at every zoom.
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Floats
from perfmodel.base.units import human_us
from perfmodel.errors import UsageError
from perfmodel.plot import style
from perfmodel.plot.names import readable, short_name
from perfmodel.plot.style import Entry, Frame

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def coverage(start_us: Floats, end_us: Floats, edges_us: Floats) -> Floats:
    """Share (0..1) of each bin between neighbouring `edges_us` that the union of pieces covers."""
    if not len(start_us):
        return np.zeros(len(edges_us) - 1)
    order = np.argsort(start_us, kind="stable")
    start_us, end_us = start_us[order], end_us[order]
    latest = np.maximum.accumulate(end_us)
    begun = start_us.copy()
    begun[1:] = np.maximum(begun[1:], latest[:-1])
    ended = np.maximum(end_us, begun)
    time_us = np.stack([begun, ended], axis=1).reshape(-1)
    taken_us = np.cumsum(ended - begun)
    covered_us = np.stack([taken_us - (ended - begun), taken_us], axis=1).reshape(-1)
    at_edges_us = np.interp(edges_us, time_us, covered_us)
    share: Floats = np.diff(at_edges_us) / np.diff(edges_us)
    return share


WIDTH_IN = 13.0
_LANE_IN = 0.42
_MANY_LANES = 16
_AXES_WIDTH_IN = 9.8
"""About what the legend and the names of the lanes leave of the width."""
_BINS = 3000
_HALF_HEIGHT = 0.38
_CHARACTER_IN = 0.056
_MAX_LABELS = 250
_MAX_CAUSES = 8


def _is_stream(resource: str) -> bool:
    """Whether a resource is a stream (`rank/device/stream`); else it is a host thread."""
    return resource.count("/") > 1


def _place(resource: str) -> tuple[int, bool, bool, list[int | str]]:
    """What lanes are ordered by: rank, threads before streams, the main one first, by number."""
    numbers = [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", resource)]
    rank = re.match(r"\d+(?=/)", resource)
    if rank is None:
        raise UsageError(f"resource {resource!r}: expected RANK/THREAD or RANK/DEVICE/STREAM")
    return int(rank[0]), _is_stream(resource), not resource.endswith("main"), numbers


def _lane_texts(names: list[str]) -> list[str]:
    """Per resource (`rank/thread`, `rank/device/stream`) its label: what all share is left out."""
    parts = [name.split("/") for name in names]
    ranks = {part[0] for part in parts}
    devices = {(part[0], part[1]) for part in parts if len(part) > 2}
    shown = []
    for part in parts:
        words = [part[1]] if len(part) > 2 and len(devices) > len(ranks) else []
        words = [re.sub(r"^(stream|gpu)(\d+)$", r"\1 \2", word) for word in (*words, part[-1])]
        shown.append(" ".join([f"rank {part[0]}"] * (len(ranks) > 1) + words))
    return shown


class _Lane(NamedTuple):
    """Pieces in one lane, and what decides their colour."""

    y: float
    start_us: Floats
    end_us: Floats
    group: NDArray[np.object_]
    label: NDArray[np.object_] | None = None
    """Names of operators and kernels; without them, pieces are called after their group."""


def timeline_figure(
    frame: Frame,
    *,
    path: Frame | None = None,
    idle: Frame | None = None,
    start_us: float,
    end_us: float,
    title: str = "",
) -> Figure:
    """Draw what ran between `start_us` and `end_us`, one lane per thread and stream.

    `frame` has a row per piece: `resource` (`rank/thread` or `rank/device/stream`), `label`,
    `kind`, `start_us`, `end_us`. `path` is the critical path (`resource`, `cause`, `start_us`,
    `end_us`, in order), drawn as a line through the lanes, and as a lane of its own by cause.
    `idle` is idle time of the device (`cause`, `start_us`, `end_us`): a lane by cause, but where
    there is neither a stream nor any idle time, and so no device.

    In a lane each colour is as high as its share of a bin of time, so no piece hides another, and
    the coloured area is the time. Raises `UsageError` where a column is missing, or the window is
    empty.
    """
    if not end_us > start_us:
        raise UsageError(f"the window from {start_us:g} us to {end_us:g} us is empty")
    span_us = end_us - start_us
    resource, kind, label = (style.texts(frame, name) for name in ("resource", "kind", "label"))
    begun, ended = (
        style.floats(frame, key).clip(start_us, end_us) for key in ("start_us", "end_us")
    )
    seen = ended > begun
    resource, kind, label = resource[seen], kind[seen], label[seen]
    begun, ended = begun[seen], ended[seen]
    names = sorted(set(resource.tolist()), key=_place)
    y_of: dict[str, float] = {}
    bottom = 0.4
    for _, group in groupby(names, key=lambda name: _place(name)[:2]):
        bottom -= 0.4
        for name in group:
            y_of[name] = bottom
            bottom -= 1.0
    if idle is not None and not len(style.texts(idle, "cause")) and not any(map(_is_stream, names)):
        idle = None
    drawn, ticks = [], _lane_texts(names)
    for at, name in enumerate(names):
        on = np.flatnonzero(resource == name)
        drawn.append(_Lane(y_of[name], begun[on], ended[on], kind[on], label[on]))
        if _is_stream(name):
            window = np.array([start_us, end_us])
            busy_pct = 100 * coverage(begun[on], ended[on], window)[0]
            ticks[at] += "\n<1 % busy" if busy_pct < 1 else f"\n{busy_pct:.0f} % busy"
    entries = [Entry(colour, readable(name)) for name, colour in _colours(kind).items()]
    bottom = min(y_of.values(), default=0.0)
    for heading, causes in (("GPU idle", idle), ("critical path", path)):
        if causes is not None:
            bottom -= 1.5 if heading == "GPU idle" or idle is None else 1.0
            cause = style.texts(causes, "cause")
            low, high = (
                style.floats(causes, k).clip(start_us, end_us) for k in ("start_us", "end_us")
            )
            on = np.flatnonzero(high > low)
            drawn.append(_Lane(bottom, low[on], high[on], cause[on]))
            ticks.append(f"{heading}\nby cause")
            entries += _cause_entries(heading, cause[on], high[on] - low[on], span_us)
    lane_in = _LANE_IN if len(drawn) <= _MANY_LANES else 0.75 * _LANE_IN
    height_in = max(lane_in * len(drawn) + 1.3, 0.168 * len(entries) + 0.9, 2.2)
    with style.panels(WIDTH_IN, height_in) as (figure, (axes,)):
        for lane in drawn:
            _draw_lane(axes, lane, start_us, end_us)
        if path is not None:
            _draw_path(axes, path, y_of, start_us, end_us)
        style.time_axis(axes, span_us, "time in the window", most_ticks=12, room_frac=0)
        heights = [lane.y for lane in drawn]
        axes.set_ylim(min(heights, default=0.0) - 0.6, max(heights, default=0.0) + 0.6)
        axes.set_yticks(heights, ticks)
        axes.set_title(title)
        style.draw_legend(axes, entries, with_path=path is not None)
    return figure


def _colours(groups: NDArray[np.object_]) -> dict[str, str]:
    """A colour per kind or cause, known kinds in their order first."""
    present = dict.fromkeys(groups.tolist())
    return style.colours_of([*(name for name in style.KIND_COLOURS if name in present), *present])


def _cause_entries(
    heading: str, cause: NDArray[np.object_], time_us: Floats, window_us: float
) -> list[Entry]:
    """The causes of a lane, longest first, each with its time; the shortest ones together."""
    names, inverse = np.unique(cause.astype(str), return_inverse=True)
    total = np.bincount(inverse, weights=time_us, minlength=len(names))
    order = np.argsort(-total, kind="stable")
    colours = style.colours_of(names.tolist())
    share_pct = 100 * total.sum() / window_us
    entries = [
        Entry(None, ""),
        Entry(None, f"{heading}: {human_us(total.sum())}, {share_pct:.0f} %"),
    ]
    most = len(order) if len(order) <= _MAX_CAUSES + 1 else _MAX_CAUSES
    for at in order[:most].tolist():
        name = str(names[at])
        entries.append(Entry(colours[name], f"{readable(name)}  {human_us(total[at])}"))
    if rest := order[most:].tolist():
        entries.append(Entry("none", f"{len(rest)} more  {human_us(total[rest].sum())}"))
    return entries


def _draw_lane(axes: Axes, lane: _Lane, start_us: float, end_us: float) -> None:
    """Fill the lane by coverage, draw cuts between wide pieces, and name those with room."""
    from matplotlib.collections import LineCollection

    edges = np.linspace(start_us, end_us, _BINS + 1)
    colours, base = _colours(lane.group), np.zeros(_BINS)
    low, high = lane.y - _HALF_HEIGHT, lane.y + _HALF_HEIGHT
    for group, colour in colours.items():
        on = lane.group == group
        top = np.minimum(base + coverage(lane.start_us[on], lane.end_us[on], edges), 1.0)
        changes = np.flatnonzero((np.diff(base) != 0) | (np.diff(top) != 0)) + 1
        at = np.concatenate([[0], changes, [-1]])  # equal bins as one
        bounds = (low + 2 * _HALF_HEIGHT * each[at] for each in (base, top))
        shape: dict[str, Any] = {"step": "post", "linewidth": 0, "snap": False, "zorder": 2}
        axes.fill_between(edges[at] - start_us, *bounds, facecolor=colour, **shape)
        base = top
    width_in = (lane.end_us - lane.start_us) * _AXES_WIDTH_IN / (end_us - start_us)
    wide = np.flatnonzero(width_in >= 0.05)
    cuts = [[(x, low), (x, high)] for x in (lane.start_us[wide] - start_us).tolist()]
    axes.add_collection(LineCollection(cuts, colors="white", linewidths=0.5, zorder=3))
    room = (width_in / _CHARACTER_IN).astype(int) - 1
    named = np.flatnonzero(room >= 5)
    for i in named[np.argsort(-width_in[named], kind="stable")][:_MAX_LABELS].tolist():
        middle = (lane.start_us[i] + lane.end_us[i]) / 2 - start_us
        text = readable(lane.group[i]) if lane.label is None else short_name(lane.label[i])
        text = text if len(text) <= room[i] else text[: int(room[i]) - 1] + "…"
        axes.text(
            middle, lane.y, text, ha="center", va="center", fontsize=6.5, clip_on=True, zorder=4,
            color=style.text_colour(colours[lane.group[i]]),
        )  # fmt: skip


def _draw_path(
    axes: Axes, path: Frame, y_of: dict[str, float], start_us: float, end_us: float
) -> None:
    """The critical path as a line along the foot of the lanes it runs in."""
    from matplotlib.patheffects import Normal, Stroke

    begun, ended = style.floats(path, "start_us"), style.floats(path, "end_us")
    heights = [y_of.get(name) for name in style.texts(path, "resource").tolist()]
    x: list[float] = []
    y: list[float] = []
    for low, high, height in zip(begun.tolist(), ended.tolist(), heights, strict=True):
        if height is None or high <= start_us or low >= end_us:
            continue
        foot = height - _HALF_HEIGHT - 0.05
        if len(y) >= 2 and y[-1] == foot and y[-2] == foot:
            x[-1] = min(high, end_us) - start_us
        else:
            x += [max(low, start_us) - start_us, min(high, end_us) - start_us]
            y += [foot, foot]
    halo = [Stroke(linewidth=2.6, foreground="white", alpha=0.8), Normal()]
    axes.plot(
        x, y, color=style.INK, linewidth=1.1, zorder=5, path_effects=halo, solid_joinstyle="miter"
    )
