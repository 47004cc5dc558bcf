"""Figures of timelines and of where their steps went."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from perfmodel.attribution.frames import piece_columns, timeline_columns
from perfmodel.attribution.path import Piece
from perfmodel.plot import breakdown_figure, timeline_figure
from perfmodel.timeline.schedule import Timeline

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def step_figure(
    timeline: Timeline,
    mark: int,
    *,
    path: Iterable[Piece] | None = None,
    idle: Iterable[Piece] | None = None,
    title: str | None = None,
) -> Figure:
    """The timeline of one step (row `mark` of the graph's marks), with its path and idle time.

    Without a title it is the name of the step and its rank.
    """
    marks = timeline.graph.marks
    start_us = float(timeline.end_us[marks.start[mark]])
    end_us = float(timeline.end_us[marks.end[mark]])
    return timeline_figure(
        timeline_columns(timeline, start_us, end_us),
        path=None if path is None else piece_columns(timeline, path),
        idle=None if idle is None else piece_columns(timeline, idle),
        start_us=start_us,
        end_us=end_us,
        title=f"{marks.name[mark]}, rank {marks.rank[mark]}" if title is None else title,
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
    step, source, part, time = zip(*rows, strict=True) if rows else ((), (), (), ())
    frame = {"step": step, "source": source, "part": part, "time_us": time}
    return breakdown_figure(frame, title=title)
