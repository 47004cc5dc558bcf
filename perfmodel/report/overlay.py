"""What is drawn over a timeline: critical paths and idle time."""

from __future__ import annotations

from perfmodel.attribution.idle import idle_gaps, idle_pieces
from perfmodel.attribution.path import Piece, Walker, critical_path
from perfmodel.report.tracks import Overlay
from perfmodel.timeline.schedule import Timeline


def overlay_of(timeline: Timeline) -> Overlay:
    """The critical path of every step, and every rank's idle time."""
    marks, walker = timeline.graph.marks, Walker.of(timeline)
    path: list[Piece] = []
    idle: dict[int, list[Piece]] = {}
    for mark, rank in enumerate(marks.rank.tolist()):
        path += critical_path(timeline, mark, walker)
        begun, over = timeline.end_us[marks.start[mark]], timeline.end_us[marks.end[mark]]
        device = timeline.graph.device_span(rank)
        gaps = idle_gaps(timeline, device, float(begun), float(over))
        idle.setdefault(rank, []).extend(idle_pieces(gaps, walker))
    return Overlay(path, idle)
