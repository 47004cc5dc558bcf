"""The tracks of a timeline in a trace viewer or a page: which boxes stand in which row, and when.

Times are whole nanoseconds from one zero for all tracks, so that neighbours never overlap by
rounding: Perfetto drops a slice that does not nest in the one before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from perfmodel.base.arrays import Ints
from perfmodel.base.units import NS_PER_US
from perfmodel.errors import GraphError
from perfmodel.plot import colours_of
from perfmodel.plot.names import readable, short_name
from perfmodel.timeline.critical_path import (
    DeviceWork,
    PathWalker,
    critical_path,
    idle_gaps,
    idle_pieces,
    node_frame,
    piece_columns,
)
from perfmodel.timeline.graph.kinds import LAUNCH_KINDS, EdgeKind
from perfmodel.timeline.graph.types import whole_text
from perfmodel.timeline.schedule import Timeline
from perfmodel.trace.categories import Category
from perfmodel.trace.columns import NONE, RankTrace
from perfmodel.trace.link import launching_op

if TYPE_CHECKING:
    from perfmodel.trace import Trace


CRITICAL_PATH = "critical path"
STEPS = "steps"
_COLUMNS = ["track", "name", "kind", "cause", "start_ns", "end_ns", "detail", "node"]


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
    """The tracks of a timeline: of each rank its steps, their critical paths on whatever ranks,
    threads and streams, and the idle time of its device by cause.

    `zero_us` is the zero of the file in the time of the timeline.
    """
    graph, marks, walker = timeline.graph, timeline.graph.marks, PathWalker(timeline)
    about = {"rank": marks.rank, "name": list(map(whole_text, marks.name)), "kind": "step"}
    times = {"start_us": timeline.end_us[marks.start], "end_us": timeline.end_us[marks.end]}
    steps = pd.DataFrame({**about, **times, "cause": "", "detail": "", "node": NONE})
    nodes = _shown_nodes(timeline)
    by_resource = dict(list(nodes.groupby("resource", sort=False)))
    rank_of = {name: int(name.partition("/")[0]) for name in graph.resources if name in by_resource}
    names: list[tuple[int, str]] = []
    parts: list[pd.DataFrame] = []

    def add(rank: int, name: str, boxes: pd.DataFrame) -> None:
        """Boxes on one track, on more where they overlap."""
        ends_us = boxes[["start_us", "end_us"]].to_numpy(float)
        start_ns, end_ns = np.rint((ends_us - zero_us) * NS_PER_US).astype(np.int64).T
        boxes = boxes.assign(start_ns=start_ns, end_ns=end_ns)
        if "edge" in boxes:  # pieces
            boxes = boxes[end_ns > start_ns]
        boxes = boxes.sort_values(["start_ns", "end_ns"], ascending=[True, False])
        lane = _lanes(boxes.start_ns.to_numpy(), boxes.end_ns.to_numpy())
        for number in range(int(lane.max(initial=-1)) + 1):
            parts.append(boxes[lane == number].assign(track=len(names)))
            names.append((rank, f"{name} ({number + 1})" if number else name))

    for rank in dict.fromkeys([*marks.rank.tolist(), *rank_of.values()]):
        own = steps[steps["rank"] == rank]
        add(rank, STEPS, own)
        paths = (critical_path(timeline, mark, walker) for mark in own.index if with_path)
        add(rank, CRITICAL_PATH, _named(piece_columns(timeline, chain.from_iterable(paths))))
        for name, number in rank_of.items():
            if number == rank:
                add(rank, name.partition("/")[2].replace("/", " "), by_resource[name])
        device = DeviceWork.of(timeline, rank) if len(own) else None
        if device is not None:
            spans = zip(own.start_us.tolist(), own.end_us.tolist(), strict=True)
            gaps = (idle_pieces(idle_gaps(device, *span), walker) for span in spans)
            idle = piece_columns(timeline, chain.from_iterable(gaps))
            add(rank, "GPU idle", _named(idle, by_cause=True))
    kept = [part[_COLUMNS] for part in parts] or [pd.DataFrame(columns=_COLUMNS)]
    numbers = dict.fromkeys(("track", "start_ns", "end_ns", "node"), np.int64)
    boxes = pd.concat(kept, ignore_index=True).astype(numbers)
    return Tracks(names, boxes, _arrows(timeline, boxes.node.to_numpy()))


def _shown_nodes(timeline: Timeline) -> pd.DataFrame:
    """Nodes and waits for other ranks as boxes; a transfer stands for its arrivals."""
    nodes, arrivals = node_frame(timeline), timeline.graph.arrivals
    shown = nodes.kind.isin(("launch", "kernel", "copy", "collective"))  # also without any time
    shown |= nodes.end_us > nodes.start_us
    if arrivals is not None:
        shown &= ~nodes.node.isin(arrivals[:, 1])
    return nodes[shown].assign(name=_with_gap(nodes[shown]), detail="")


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


MAX_BOXES = 60_000
"""Of all views of a page together; one view holds at least its half."""
_DATA = ("start", "length", "text", "kind", "launch", "about", "after")
_NOTHING = {"launch": -1, "about": 0, "after": 0}
"""Values that columns without any other are left out for."""


class Shown(NamedTuple):
    """A timeline that the page shows: its name, and the row of its marks that comes first."""

    mode: str
    timeline: Timeline
    mark: int
    is_of_trace: bool
    """Whether its nodes are events of the trace."""


def timeline_data(shown: Sequence[Shown], trace: Trace | None) -> dict[str, Any]:
    """The timelines as the page's script reads them: a view for each and for its steps, the step
    that comes first before the others, as many as `MAX_BOXES` allows.

    A view has rows of boxes, by rank: starts (as differences) and lengths in units of 0.1 us,
    indices of `texts` and `kinds` (text and colour), and of `notes` (what is known of a box; of
    what it waited for last). `path` leads through the rows: row, start and end of every piece.
    """
    tables = Tables()
    sources = [Source(each, trace, tables) for each in shown]
    views = [source.view(source.shown.mark, MAX_BOXES // 2) for source in sources]
    left = MAX_BOXES - sum(map(_boxes, views))
    for source in sources:
        rank_of = source.shown.timeline.graph.marks.rank
        of_rank = np.flatnonzero(rank_of == rank_of[source.shown.mark])
        for mark in of_rank[of_rank != source.shown.mark].tolist():
            view = source.view(mark, MAX_BOXES)
            if (left := left - _boxes(view)) < 0:
                break
            views.append(view)
    colours = colours_of(tables.kinds)
    return {
        "texts": list(tables.texts),
        "kinds": [[readable(kind), colours[kind]] for kind in tables.kinds],
        "notes": [list(map(list, note)) for note in tables.notes],
        "views": views,
    }


def _boxes(view: Mapping[str, Any]) -> int:
    return sum(len(row["start"]) for row in view["rows"])


class _Index(dict[Any, int]):
    """Values by first use, each stored once."""

    def __missing__(self, value: Any) -> int:
        return self.setdefault(value, len(self))


class Tables:
    """Texts, kinds and notes that the boxes of all views refer to."""

    def __init__(self) -> None:
        self.texts, self.kinds, self.notes = _Index(), _Index(), _Index({(): 0})

    def note(self, **facts: str) -> int:
        """The index of a note of those facts that say something."""
        said = ((name.replace("_", " ").strip(), text) for name, text in facts.items() if text)
        return self.notes[tuple(said)]


class Source:
    """One timeline: its tracks on one clock, and what is known of its nodes."""

    def __init__(self, shown: Shown, trace: Trace | None, tables: Tables) -> None:
        self.shown, self._tables = shown, tables
        timeline = shown.timeline
        tracks = tracks_of(timeline, 0.0, with_path=False)
        source, target = tracks.arrows.T
        calls, boxes = tracks.boxes.iloc[source], tracks.boxes.assign(launch_ns=-1, launch="")
        boxes.loc[target, "launch_ns"] = calls.start_ns.to_numpy()
        boxes.loc[target, "launch"] = [
            f"{call.name} on {tracks.names[call.track][1]}" for call in calls.itertuples()
        ]
        is_shown = [not name.startswith(STEPS) for _, name in tracks.names]
        self._boxes = boxes[np.array(is_shown, bool)[boxes.track.to_numpy(int)]]
        self._names = tracks.names
        self._walker = PathWalker(timeline)
        ranks = trace.ranks if trace is not None and shown.is_of_trace else ()
        links = trace.links if trace is not None else ()
        self._events = dict[int, tuple[RankTrace, dict[int, int]]]()
        """Of a rank per row of an operator that row, of what ran on the device that of what
        launched it."""
        for rank, link in zip(ranks, links, strict=False):
            ops, by = rank.of(Category.CPU_OP).tolist(), launching_op(rank, link).tolist()
            operator_of = dict(zip(link.device_rows.tolist(), by, strict=True))
            self._events[rank.rank] = rank, dict(zip(ops, ops, strict=True)) | operator_of

    def view(self, mark: int, most: int) -> dict[str, Any]:
        """What runs on all ranks while step `mark` lasts on any; the longest `most` boxes."""
        timeline, marks, boxes = self.shown.timeline, self.shown.timeline.graph.marks, self._boxes
        same = [at for at, name in enumerate(marks.name) if name == marks.name[mark]]
        begin_us = float(timeline.end_us[marks.start[same]].min())
        span_ns = round((float(timeline.end_us[marks.end[same]].max()) - begin_us) * NS_PER_US)
        zero_ns = round(begin_us * NS_PER_US)
        low, high = boxes.start_ns - zero_ns, boxes.end_ns - zero_ns
        boxes = boxes.assign(low=low.clip(lower=0), high=high.clip(upper=span_ns))
        boxes = boxes[boxes.high > boxes.low]
        length, note = (boxes.high - boxes.low).to_numpy(), ""
        if len(length) > most:
            least_ns = int(np.partition(length, -most)[-most]) + 1
            short, least_us = int((length < least_ns).sum()), least_ns / NS_PER_US
            note = f"{short:,} boxes shorter than {least_us:.1f} us are left out."
            boxes = boxes[length >= least_ns]
        rows: list[dict[str, Any]] = []
        row_of: dict[str, int] = {}
        several = len({self._names[at][0] for at in self._boxes.track.unique()}) > 1
        for track, own in boxes.groupby("track"):
            rank, name = self._names[int(track)]
            row_of[f"{rank}/{name}"] = len(rows) + 1
            filled = [self._box(box) for box in own.itertuples()]
            rows.append(_row(f"rank {rank} {name}" if several else name, rank, filled))
        path, line = self._path(mark, zero_ns, row_of)
        return {
            "mode": self.shown.mode,
            "step": marks.name[mark],
            "span": span_ns // 100,
            "length": round(float(timeline.step_us[mark]) * NS_PER_US) // 100,
            "note": note,
            "rows": [path, *rows],
            "path": line,
        }

    def _box(self, box: Any) -> tuple[int, ...]:
        """A box in the columns of a row; its note names annotation, its operator with
        inputs and the call that launched it, another what it waited for last, and how."""
        graph, walker, node = self.shown.timeline.graph, self._walker, box.node
        about: dict[str, str] = {"for": box.detail}
        after = 0
        if 0 <= node < len(graph):
            operator = inputs = ""
            rank, operator_of = self._events.get(int(graph.nodes_.rank[node]), (None, {}))
            at = operator_of.get(int(graph.nodes_.row[node]), NONE)
            if rank is not None and at != NONE:
                operator, inputs = rank.text(at), rank.strings[int(rank.input_shapes[at])]
            about |= {"in": graph.annotations[node], "operator": operator, "inputs": inputs}
            about |= {"launched by": box.launch}
            if (source := walker.before[node]) >= 0:
                kind = EdgeKind(walker.edge[node]).name.lower().replace("_", " ")
                where = graph.resources[graph.nodes_.resource[source]].replace("/", " ")
                name = short_name(graph.labels[source]) or "the start"
                after = self._tables.note(after=f"{name} on rank {where} ({kind})")
        return (
            box.low // 100,
            box.high // 100,
            self._tables.texts[readable(box.name) if box.name == box.cause else box.name],
            self._tables.kinds[box.cause or box.kind],
            -1 if box.launch_ns < 0 else max(box.start_ns - box.launch_ns, 0) // 100,
            self._tables.note(**about),
            after,
        )

    def _path(
        self, mark: int, zero_ns: int, row_of: Mapping[str, int]
    ) -> tuple[dict[str, Any], list[tuple[int, int, int]]]:
        """The critical path as a row, on whatever rank; and the rows that it leads through."""
        timeline = self.shown.timeline
        boxes: list[tuple[int, ...]] = []
        line: list[tuple[int, int, int]] = []
        pieces = piece_columns(timeline, critical_path(timeline, mark, self._walker))
        for piece in pieces.itertuples():
            ends_us = piece.start_us, piece.end_us
            low, high = (max(round(us * NS_PER_US) - zero_ns, 0) // 100 for us in ends_us)
            if high <= low:
                continue
            rank, _, rest = piece.resource.partition("/")
            row = row_of.get(f"{rank}/{rest.replace('/', ' ')}")
            if row is not None and not piece.edge:
                line.append((row, low, high))
            facts = {"on": piece.resource and f"rank {piece.resource}"}
            note = self._tables.note(**facts, waiting_by=piece.edge.replace("_", " "))
            text = self._tables.texts[piece.label or readable(piece.cause)]
            boxes.append((low, high, text, self._tables.kinds[piece.cause], -1, note, 0))
        return _row(CRITICAL_PATH, None, boxes), line


def _row(name: str, rank: int | None, boxes: Sequence[tuple[int, ...]]) -> dict[str, Any]:
    """A row of the page from boxes (start, end, text, kind, launch, about, after); columns that
    hold nothing are left out."""
    table = np.array(boxes, np.int64).reshape(-1, len(_DATA))
    table[:, 1] -= table[:, 0]
    table[:, 0] = np.diff(table[:, 0], prepend=0)
    columns = dict(zip(_DATA, table.T, strict=True))
    empty = [key for key, nothing in _NOTHING.items() if (columns[key] == nothing).all()]
    kept = {key: each.tolist() for key, each in columns.items() if key not in empty}
    return {"name": name, "rank": rank, **kept}
