"""Figures of timelines and of where their steps went, and the columns that they take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from perfmodel.base.arrays import Floats, Ints
from perfmodel.plot import breakdown_figure, timeline_figure
from perfmodel.timeline.critical_path import ROUNDING_US, Piece
from perfmodel.timeline.graph.kinds import Cause
from perfmodel.timeline.schedule import Timeline

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Columns = dict[str, Any]
WAITING_LABEL = "waiting for other ranks"
_CAUSES = [cause.name.lower() for cause in Cause]


def timeline_columns(
    timeline: Timeline, start_us: float = -np.inf, end_us: float = np.inf
) -> Columns:
    """The nodes of a timeline that run within [start_us, end_us] of the graph's clock.

    Columns `resource`, `label`, `kind`, `scope`, `start_us`, `end_us`; nodes that take no time
    are left out. Where ranks meet, waiting for the others is a piece of kind `collective_wait`.
    """
    import pandas as pd

    nodes = timeline.graph.nodes.assign(start_us=timeline.start_us, end_us=timeline.end_us)
    waits = meeting_waits(timeline)
    waiting = nodes.iloc[waits.node].assign(
        label=WAITING_LABEL,
        kind="collective_wait",
        scope="none",
        start_us=waits.start_us,
        end_us=waits.end_us,
    )
    every = pd.concat([nodes, waiting])
    is_shown = (every.end_us > start_us) & (every.start_us < end_us)
    shown = every[is_shown & (every.end_us > every.start_us)]
    names = ("resource", "label", "kind", "scope", "start_us", "end_us")
    return {name: shown[name].to_numpy() for name in names}


class MeetingWaits(NamedTuple):
    """Where a stream was taken by a collective that waited for other ranks."""

    node: Ints
    """The transfer that followed."""
    start_us: Floats
    end_us: Floats


def meeting_waits(timeline: Timeline) -> MeetingWaits:
    """From each rank's arrival at a collective to the start of its transfer, where time passed."""
    arrivals = timeline.graph.arrivals
    if arrivals is None:
        return MeetingWaits(np.zeros(0, np.int64), np.zeros(0), np.zeros(0))
    transfer, arrival = arrivals[:, 0], arrivals[:, 1]
    begun, over = timeline.end_us[arrival], timeline.start_us[transfer]
    took = over > begun
    return MeetingWaits(transfer[took], begun[took], over[took])


def piece_columns(timeline: Timeline, pieces: Iterable[Piece]) -> Columns:
    """Pieces of a critical path, or of idle time, in order of time; none that only rounding made.

    Columns `resource`, `label`, `cause`, `start_us`, `end_us`; resource and label are those of the
    node of the piece, empty where it has none.
    """
    drawn = (piece for piece in pieces if piece.end_us - piece.start_us > ROUNDING_US)
    ordered: Sequence[Piece] = sorted(drawn, key=lambda piece: (piece.start_us, piece.end_us))
    graph = timeline.graph
    resource = graph.nodes_.resource
    return {
        "resource": [graph.resources[resource[p.node]] if p.node >= 0 else "" for p in ordered],
        "label": [graph.labels[p.node] if p.node >= 0 else "" for p in ordered],
        "cause": [_CAUSES[p.cause] for p in ordered],
        "start_us": np.array([p.start_us for p in ordered], dtype=np.float64),
        "end_us": np.array([p.end_us for p in ordered], dtype=np.float64),
    }


def step_figure(
    timeline: Timeline, mark: int, *, path: Iterable[Piece], idle: Iterable[Piece] | None = None
) -> Figure:
    """The timeline of one step (row `mark` of the graph's marks), with its path and idle time."""
    marks = timeline.graph.marks
    start_us = float(timeline.end_us[marks.start[mark]])
    end_us = float(timeline.end_us[marks.end[mark]])
    return timeline_figure(
        timeline_columns(timeline, start_us, end_us),
        path=piece_columns(timeline, path),
        idle=None if idle is None else piece_columns(timeline, idle),
        start_us=start_us,
        end_us=end_us,
        title=f"{marks.name[mark]}, rank {marks.rank[mark]}",
    )


def comparison_figure(
    steps: Mapping[str, Mapping[str, Mapping[str, float]]], *, title: str = ""
) -> Figure:
    """Stacked bars of `{step: {source: {part: microseconds}}}`, such as
    `{"ProfilerStep#5": {"measured": path.by_cause(), "predicted": other.by_cause()}}`."""
    rows = [
        (step, source, part, time_us)
        for step, sources in steps.items()
        for source, parts in sources.items()
        for part, time_us in parts.items()
    ]
    columns = zip(*rows, strict=True) if rows else ((), (), (), ())
    names = ("step", "source", "part", "time_us")
    return breakdown_figure(dict(zip(names, columns, strict=True)), title=title)
