"""The tracks of a timeline in a trace viewer: which boxes stand in which row, and when.

Times are whole nanoseconds from one zero for all tracks, so that neighbours never overlap by
rounding: Perfetto drops a slice that does not nest in the one before it.
"""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple

import numpy as np
import pandas as pd

from perfmodel.base.arrays import Ints
from perfmodel.base.units import NS_PER_US
from perfmodel.errors import GraphError
from perfmodel.timeline.critical_path import PathWalker, critical_path
from perfmodel.timeline.figures import node_frame, piece_columns
from perfmodel.timeline.graph.kinds import LAUNCH_KINDS
from perfmodel.timeline.graph.types import whole_text
from perfmodel.timeline.idle import DeviceWork, idle_gaps, idle_pieces
from perfmodel.timeline.schedule import Timeline
from perfmodel.trace.columns import NONE

CRITICAL_PATH = "critical path"
GPU_IDLE = "GPU idle"
STEPS = "steps"
_COLUMNS = ["track", "name", "kind", "cause", "start_ns", "end_ns", "detail", "node"]
_ELSE = {"cause": "", "detail": "", "node": NONE}
"""What boxes have that say nothing of it."""
_SHOWN_WITHOUT_TIME = ("launch", "kernel", "copy", "collective")


class Tracks(NamedTuple):
    """Named rows of boxes that do not overlap."""

    names: list[tuple[int, str]]
    """Rank and name of each, by rank from top to bottom."""
    boxes: pd.DataFrame
    """By track and time: `track`, `name`, `kind`, `cause`, `start_ns`, `end_ns`, `detail` (what was
    waited for), `node` of the graph or -1."""
    arrows: Ints
    """`[n, 2]` rows of `boxes`: from a launch call to what it put on a stream."""


def first_step(timeline: Timeline) -> tuple[float, float]:
    """When the first step of any rank starts (without steps: the first node), and how long before
    it the first node does, in microseconds.

    Raises `GraphError` naming the first node whose time is not a number.
    """
    finite = np.isfinite(timeline.start_us) & np.isfinite(timeline.end_us)
    if not finite.all():
        node = int(np.argmin(finite))
        raise GraphError(f"node {node} ({timeline.graph.labels[node]}) has no finite time")
    marks = timeline.graph.marks
    first_us = float(timeline.start_us.min()) if len(finite) else 0.0
    step_us = float(timeline.end_us[marks.start].min()) if len(marks.start) else first_us
    return step_us, max(0.0, step_us - first_us)


def tracks_of(timeline: Timeline, zero_us: float, *, with_path: bool = True) -> Tracks:
    """The tracks of a timeline: of each rank its steps, the critical path through it, threads and
    streams, and the idle time of its device by cause.

    `zero_us` is the zero of the file in the time of the timeline.
    """
    graph, marks, walker = timeline.graph, timeline.graph.marks, PathWalker(timeline)
    every_mark = range(len(marks.name))
    names_of_steps = list(map(whole_text, marks.name))
    steps = pd.DataFrame({"rank": marks.rank, "name": names_of_steps, "kind": "step"})
    steps = steps.assign(start_us=timeline.end_us[marks.start], end_us=timeline.end_us[marks.end])
    pieces = (critical_path(timeline, mark, walker) for mark in every_mark if with_path)
    path = piece_columns(timeline, chain.from_iterable(pieces))
    first = float(marks.rank[0]) if len(marks.rank) else 0.0
    path["rank"] = path["rank"].astype(float).ffill().fillna(first)
    nodes = _shown_nodes(timeline)
    by_resource = dict(list(nodes.groupby("resource", sort=False)))
    rank_of = {name: _rank_of(name) for name in graph.resources if name in by_resource}
    names: list[tuple[int, str]] = []
    parts: list[pd.DataFrame] = []

    def add(rank: int, name: str, boxes: pd.DataFrame) -> None:
        """Boxes on one track, on more where they overlap."""
        in_ns = {
            f"{end}_ns": np.rint((boxes[f"{end}_us"].to_numpy(float) - zero_us) * NS_PER_US)
            for end in ("start", "end")
        }
        missing = {key: value for key, value in _ELSE.items() if key not in boxes}
        boxes = boxes.assign(**{k: ns.astype(np.int64) for k, ns in in_ns.items()}, **missing)
        if "edge" in boxes:  # pieces, in order
            boxes = boxes[boxes.end_ns > boxes.start_ns]
        else:
            boxes = boxes.sort_values(["start_ns", "end_ns"], ascending=[True, False])
        lane = _lanes(boxes.start_ns.to_numpy(), boxes.end_ns.to_numpy())
        for number in range(int(lane.max(initial=-1)) + 1):
            parts.append(boxes[lane == number].assign(track=len(names)))
            names.append((rank, f"{name} ({number + 1})" if number else name))

    for rank in dict.fromkeys([*marks.rank.tolist(), *rank_of.values()]):
        own = steps[steps["rank"] == rank]
        add(rank, STEPS, own)
        add(rank, CRITICAL_PATH, _named(path[path["rank"] == rank]))
        for name, number in rank_of.items():
            if number == rank:
                rest = name.partition("/")[2].replace("/", " ")
                add(rank, rest or name, by_resource[name])
        device = DeviceWork.of(timeline, rank) if len(own) else None
        if device is not None:
            spans = zip(own.start_us.tolist(), own.end_us.tolist(), strict=True)
            gaps = (idle_pieces(idle_gaps(device, *span), walker) for span in spans)
            idle = piece_columns(timeline, chain.from_iterable(gaps))
            add(rank, GPU_IDLE, _named(idle, by_cause=True))
    kept = [part[_COLUMNS] for part in parts] or [pd.DataFrame(columns=_COLUMNS)]
    numbers = dict.fromkeys(("track", "start_ns", "end_ns", "node"), np.int64)
    boxes = pd.concat(kept, ignore_index=True).astype(numbers)
    return Tracks(names, boxes, _arrows(timeline, boxes.node.to_numpy()))


def _rank_of(resource: str) -> int:
    text = resource.partition("/")[0]
    return int(text) if text.lstrip("-").isdigit() else 0


def _shown_nodes(timeline: Timeline) -> pd.DataFrame:
    """Nodes and waits for other ranks as boxes; a transfer stands for its arrivals."""
    nodes, arrivals = node_frame(timeline), timeline.graph.arrivals
    shown = (nodes.end_us > nodes.start_us) | nodes.kind.isin(_SHOWN_WITHOUT_TIME)
    shown &= nodes.kind != "mark"
    if arrivals is not None:
        shown &= ~nodes.node.isin(arrivals[:, 1])
    return nodes[shown].assign(name=_with_gap(nodes[shown]))


def _with_gap(rows: pd.DataFrame) -> pd.Series[str]:
    """Labels; of the time between operators, before which it is."""
    return rows.label.where(rows.cause != "host_t1", "before " + rows.label.astype(object))


def _named(pieces: pd.DataFrame, *, by_cause: bool = False) -> pd.DataFrame:
    """Pieces as boxes named after their nodes; waits, and all `by_cause`, after their cause."""
    is_cause = by_cause | (pieces.edge != "") | (pieces.label == "")
    edge = pieces.edge.where(pieces.edge != "", "idle")
    return pieces.assign(
        name=pieces.cause.where(is_cause, _with_gap(pieces)),
        kind=edge.where(is_cause, pieces.kind),
        detail=pieces.label.where(is_cause, ""),
        node=NONE,
    )


def _lanes(start_ns: Ints, end_ns: Ints) -> Ints:
    """For boxes in order of start, the first lane that is free by then."""
    lane = np.zeros(len(start_ns), np.int64)
    if (start_ns[1:] >= end_ns[:-1]).all():
        return lane
    free: list[int] = []
    for at, (start, end) in enumerate(zip(start_ns.tolist(), end_ns.tolist(), strict=True)):
        lane[at] = next((n for n, until in enumerate(free) if until <= start), len(free))
        free[lane[at] : lane[at] + 1] = [end]
    return lane


def _arrows(timeline: Timeline, node_of_box: Ints) -> Ints:
    """One per launch edge between nodes that are shown."""
    edges, arrivals, count = timeline.graph.edges_, timeline.graph.arrivals, len(timeline.graph)
    row_of = np.full(count, NONE, np.int64)
    has_node = np.flatnonzero(node_of_box != NONE)
    row_of[node_of_box[has_node]] = has_node
    if arrivals is not None:
        row_of[arrivals[:, 1]] = row_of[arrivals[:, 0]]
    launches = np.isin(edges.kind, LAUNCH_KINDS)
    ends = row_of[np.stack([edges.source[launches], edges.target[launches]], axis=1)]
    found: Ints = ends[(ends != NONE).all(axis=1)]
    return found
