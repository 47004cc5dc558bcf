"""The tracks of a timeline in a trace viewer: which slices stand in which row, and when.

Times are whole nanoseconds from one zero for all tracks, so that neighbours never overlap by
rounding: Perfetto drops a slice that does not nest in the one before it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.units import NS_PER_US
from perfmodel.errors import GraphError
from perfmodel.timeline.critical_path import PathWalker, Piece, critical_path
from perfmodel.timeline.figures import WAITING_LABEL, meeting_waits
from perfmodel.timeline.graph.kinds import LAUNCH_KINDS, Cause, EdgeKind, NodeKind
from perfmodel.timeline.idle import DeviceWork, idle_gaps, idle_pieces
from perfmodel.timeline.schedule import Timeline
from perfmodel.trace.columns import NONE

CRITICAL_PATH = "critical path"
GPU_IDLE = "GPU idle"
STEPS = "steps"
_KINDS = [kind.name.lower() for kind in NodeKind]
_CAUSES = [cause.name.lower() for cause in Cause]
_EDGES = [kind.name.lower() for kind in EdgeKind]


class Slice(NamedTuple):
    """One box in a track; times in nanoseconds from the zero of the file."""

    name: str
    kind: str
    cause: str
    start_ns: int
    end_ns: int
    detail: str = ""
    """What it was waited for, or which edge led to it."""
    node: int = NONE
    """Of the graph."""


class Track(NamedTuple):
    """A named row of slices in order of time, that do not overlap."""

    rank: int
    name: str
    slices: list[Slice]

    def between(self, low_ns: int, high_ns: int) -> slice:
        """Which of its slices are there between two times."""
        first = bisect_right(self.slices, low_ns, key=attrgetter("end_ns"))
        return slice(
            first, max(bisect_left(self.slices, high_ns, key=attrgetter("start_ns")), first)
        )


class Arrow(NamedTuple):
    """From a launch call to what it put on a stream: places and starts of both slices."""

    source: tuple[int, int]
    """(track, slice) by index."""
    target: tuple[int, int]


def first_step_us(timeline: Timeline) -> float:
    """When the first step of any rank starts (without steps: the first node)."""
    marks = timeline.graph.marks
    if len(marks.start):
        return float(timeline.end_us[marks.start].min())
    return float(timeline.start_us.min()) if len(timeline.start_us) else 0.0


def lead_us(timeline: Timeline) -> float:
    """How long before the first step the first node starts.

    Raises `GraphError` naming the first node whose time is not a number.
    """
    finite = np.isfinite(timeline.start_us) & np.isfinite(timeline.end_us)
    if not finite.all():
        node = int(np.argmin(finite))
        raise GraphError(f"node {node} ({timeline.graph.labels[node]}) has no finite time")
    if not len(finite):
        return 0.0
    return max(0.0, first_step_us(timeline) - float(timeline.start_us.min()))


def tracks_of(
    timeline: Timeline, zero_us: float, *, with_path: bool = True
) -> tuple[list[Track], list[Arrow]]:
    """The tracks of a timeline, by rank from top to bottom, and the arrows between them: steps, the
    critical path of each, threads and streams, idle time of the device by cause.

    `zero_us` is the zero of the file in the time of the timeline.
    """
    marks, walker = timeline.graph.marks, PathWalker.of(timeline)
    rank_of_mark = marks.rank.tolist()
    pieces = (critical_path(timeline, mark, walker) for mark in range(len(rank_of_mark)))
    path = _by_rank(timeline, chain.from_iterable(pieces)) if with_path else {}
    boxes = _resource_boxes(timeline, zero_us)
    rank_of = {name: _rank_of(name) for name in boxes}
    steps_us = timeline.end_us[marks.start], timeline.end_us[marks.end]
    steps = [*zip(rank_of_mark, marks.name, *(each.tolist() for each in steps_us), strict=True)]
    tracks: list[Track] = []
    for rank in dict.fromkeys([*rank_of_mark, *rank_of.values()]):
        own = [step[1:] for step in steps if step[0] == rank]
        in_ns = zip(own, *(_ns([step[at] for step in own], zero_us) for at in (1, 2)), strict=True)
        tracks += _fitted(
            rank, STEPS, (Slice(step[0], "step", "", low, high) for step, low, high in in_ns)
        )
        if rank in path:
            tracks += _fitted(rank, CRITICAL_PATH, _pieces(timeline, path[rank], zero_us))
        for name, slices in boxes.items():
            if rank_of[name] == rank:
                rest = name.partition("/")[2].replace("/", " ")
                tracks += _fitted(rank, rest or name, slices)
        if own:
            device = DeviceWork.of(timeline, rank)
            gaps = (idle_pieces(idle_gaps(device, low, high), walker) for _, low, high in own)
            idle = _pieces(timeline, chain.from_iterable(gaps), zero_us, by_cause=True)
            tracks += _fitted(rank, GPU_IDLE, idle)
    return tracks, list(_arrows(timeline, tracks))


def _ns(time_us: Floats | Sequence[float], zero_us: float) -> list[int]:
    """Whole nanoseconds from the zero of the file."""
    found: list[int] = np.rint((np.asarray(time_us) - zero_us) * NS_PER_US).astype(int).tolist()
    return found


def _rank_of(resource: str) -> int:
    text = resource.partition("/")[0]
    return int(text) if text.lstrip("-").isdigit() else 0


def _resource_boxes(timeline: Timeline, zero_us: float) -> dict[str, list[Slice]]:
    """Per resource its nodes in order of start, the longest first, and waits for other ranks."""
    graph, nodes, waits = timeline.graph, timeline.graph.nodes_, meeting_waits(timeline)
    start_ns = _ns(np.concatenate([timeline.start_us, waits.start_us]), zero_us)
    end_ns = _ns(np.concatenate([timeline.end_us, waits.end_us]), zero_us)
    resource = np.concatenate([nodes.resource, nodes.resource[waits.node]]).tolist()
    shown = nodes.kind != NodeKind.MARK
    shown &= (timeline.end_us > timeline.start_us) | np.isin(nodes.kind, _SHOWN_WITHOUT_TIME)
    if graph.arrivals is not None:
        shown[graph.arrivals[:, 1]] = False
    kind, cause, count = nodes.kind.tolist(), nodes.cause.tolist(), len(graph)
    rows = np.concatenate([np.flatnonzero(shown), count + np.arange(len(waits.node))])
    order = rows[np.lexsort((-np.array(end_ns)[rows], np.array(start_ns)[rows]))].tolist()
    boxes: dict[str, list[Slice]] = {name: [] for name in graph.resources}
    for row in order:
        why, times = _CAUSES[Cause.COLLECTIVE_WAIT], (start_ns[row], end_ns[row])
        box = Slice(WAITING_LABEL, why, why, *times)
        if row < count:
            name, why = graph.labels[row], _CAUSES[cause[row]]
            name = f"before {name}" if cause[row] == Cause.HOST_T1 else name
            box = Slice(name, _KINDS[kind[row]], why, *times, node=row)
        boxes[graph.resources[resource[row]]].append(box)
    return boxes


_SHOWN_WITHOUT_TIME = (NodeKind.LAUNCH, NodeKind.KERNEL, NodeKind.COPY, NodeKind.COLLECTIVE)


def _fitted(rank: int, name: str, slices: Iterable[Slice]) -> list[Track]:
    """A track of these slices, in order of start; more where they overlap."""
    tracks: list[Track] = []
    for box in slices:
        free = (each for each in tracks if each.slices[-1].end_ns <= box.start_ns)
        track = next(free, None)
        if track is None:
            number = f" ({len(tracks) + 1})" if tracks else ""
            track = Track(rank, f"{name}{number}", [])
            tracks.append(track)
        track.slices.append(box)
    return tracks


def _arrows(timeline: Timeline, tracks: Sequence[Track]) -> Iterator[Arrow]:
    """One arrow per launch edge between nodes that are shown; a transfer stands for its
    arrivals."""
    place = {
        box.node: (at, number)
        for at, track in enumerate(tracks)
        for number, box in enumerate(track.slices)
        if box.node != NONE
    }
    edges, arrivals = timeline.graph.edges_, timeline.graph.arrivals
    launches = np.flatnonzero(np.isin(edges.kind, LAUNCH_KINDS))
    transfer_of = {} if arrivals is None else dict(zip(*arrivals.T[::-1].tolist(), strict=True))
    ends = edges.source[launches].tolist(), edges.target[launches].tolist()
    for source, target in zip(*ends, strict=True):
        target = transfer_of.get(target, target)
        if source in place and target in place:
            yield Arrow(place[source], place[target])


def _by_rank(timeline: Timeline, path: Iterable[Piece]) -> dict[int, list[Piece]]:
    """The pieces of a path by the rank of their node; pieces without a node stay with the last."""
    rank_of = timeline.graph.nodes_.rank
    by_rank: dict[int, list[Piece]] = {}
    rank = int(timeline.graph.marks.rank[0]) if len(timeline.graph.marks.rank) else 0
    for piece in sorted(path, key=lambda p: (p.start_us, p.end_us)):
        rank = int(rank_of[piece.node]) if piece.node >= 0 else rank
        by_rank.setdefault(rank, []).append(piece)
    return by_rank


def _pieces(
    timeline: Timeline, pieces: Iterable[Piece], zero_us: float, *, by_cause: bool = False
) -> Iterator[Slice]:
    """Slices of a path (named after its nodes, its waits after their cause) or of idle time."""
    ordered = sorted(pieces, key=lambda p: (p.start_us, p.end_us))
    start_ns = _ns([piece.start_us for piece in ordered], zero_us)
    end_ns = _ns([piece.end_us for piece in ordered], zero_us)
    labels, kinds = timeline.graph.labels, timeline.graph.nodes_.kind.tolist()
    for piece, low, high in zip(ordered, start_ns, end_ns, strict=True):
        if high <= low:
            continue
        cause = _CAUSES[piece.cause]
        label = labels[piece.node] if piece.node >= 0 else ""
        edge = _EDGES[piece.edge] if piece.edge >= 0 else ""
        if by_cause or edge or not label:
            yield Slice(cause, edge or "idle", cause, low, high, label)
        else:
            label = f"before {label}" if piece.cause == Cause.HOST_T1 else label
            yield Slice(label, _KINDS[kinds[piece.node]], cause, low, high)
