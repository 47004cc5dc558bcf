"""What is drawn over a timeline: critical paths and idle time."""

from __future__ import annotations

from perfmodel.attribution.device import DeviceWork
from perfmodel.attribution.idle import idle_gaps, idle_pieces
from perfmodel.attribution.path import Piece, Walker, critical_path
from perfmodel.report.tracks import Overlay
from perfmodel.timeline.schedule import Timeline


def overlay_of(timeline: Timeline) -> Overlay:
    """The critical path of every step, and every rank's idle time."""
    marks, walker = timeline.graph.marks, Walker.of(timeline)
    path: list[Piece] = []
    idle: dict[int, list[Piece]] = {}
    devices = {rank: DeviceWork.of(timeline, rank) for rank in set(marks.rank.tolist())}
    for mark, rank in enumerate(marks.rank.tolist()):
        path += critical_path(timeline, mark, walker)
        begun, over = timeline.end_us[marks.start[mark]], timeline.end_us[marks.end[mark]]
        gaps = idle_gaps(devices[rank], float(begun), float(over))
        idle.setdefault(rank, []).extend(idle_pieces(gaps, walker))
    return Overlay(path, idle)
