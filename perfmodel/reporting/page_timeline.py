"""The timelines of the page, as the JSON that its script reads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from perfmodel.base.units import NS_PER_US
from perfmodel.plot import colours_of
from perfmodel.plot.names import short_name
from perfmodel.plot.style import readable
from perfmodel.reporting.tracks import (
    STEPS,
    Arrow,
    Track,
    tracks_of,
)
from perfmodel.timeline.critical_path import PathWalker, critical_path
from perfmodel.timeline.graph.kinds import Cause, EdgeKind
from perfmodel.timeline.schedule import Timeline, deciding_edges
from perfmodel.trace.categories import Category
from perfmodel.trace.columns import NONE, RankTrace
from perfmodel.trace.link import Links, enclosing, innermost, launching_op

if TYPE_CHECKING:
    from perfmodel.trace import Trace


MAX_BOXES = 60_000
"""Of all views of a page together; one view holds at least its half."""
PATH_NAME = "critical path"
Fact = tuple[str, str]


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
    tables = _Tables()
    sources = [_Source(each, trace, tables) for each in shown]
    views = [source.view(source.shown.mark, MAX_BOXES // 2) for source in sources]
    left = MAX_BOXES - sum(map(_boxes, views))
    for source in sources:
        for mark in source.other_marks():
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


class _Tables:
    """Texts, kinds and notes that the boxes of all views refer to."""

    def __init__(self) -> None:
        self.texts, self.kinds, self.notes = _Index(), _Index(), _Index({(): 0})

    def note(self, *facts: Fact) -> int:
        """The index of a note of those facts that say something."""
        return self.notes[tuple(fact for fact in facts if fact[1])]


class _Source:
    """One timeline: its tracks on one clock, and what is known of its nodes."""

    def __init__(self, shown: Shown, trace: Trace | None, tables: _Tables) -> None:
        self.shown, self._tables = shown, tables
        timeline = shown.timeline
        tracks, arrows = tracks_of(timeline, 0.0, with_path=False)
        self._tracks = [
            (at, track) for at, track in enumerate(tracks) if not track.name.startswith(STEPS)
        ]
        self._launched = _launch_starts(tracks, arrows)
        self._deciding = deciding_edges(timeline)
        self._walker = PathWalker.of(timeline, self._deciding)
        self._same = defaultdict[str, list[int]](list)
        for mark, name in enumerate(timeline.graph.marks.name):
            self._same[name].append(mark)
        self._several = len({track.rank for _, track in self._tracks}) > 1
        ranks = trace.ranks if trace is not None and shown.is_of_trace else ()
        links = trace.links if trace is not None else ()
        self._events = {
            rank.rank: (rank, _operator_of(rank, link))
            for rank, link in zip(ranks, links, strict=False)
        }

    def other_marks(self) -> Iterator[int]:
        marks = self.shown.timeline.graph.marks
        rank = marks.rank[self.shown.mark]
        yield from (m for m in np.flatnonzero(marks.rank == rank).tolist() if m != self.shown.mark)

    def view(self, mark: int, most: int) -> dict[str, Any]:
        """What runs on all ranks while step `mark` lasts on any; the longest `most` boxes."""
        timeline, marks = self.shown.timeline, self.shown.timeline.graph.marks
        same = self._same[marks.name[mark]]
        begin_us = float(timeline.end_us[marks.start[same]].min())
        span_ns = round((float(timeline.end_us[marks.end[same]].max()) - begin_us) * NS_PER_US)
        zero_ns = round(begin_us * NS_PER_US)
        lengths = [
            min(box.end_ns - zero_ns, span_ns) - max(box.start_ns - zero_ns, 0)
            for _, track in self._tracks
            for box in track.slices[track.between(zero_ns, zero_ns + span_ns)]
        ]
        least_ns = 1
        note = ""
        if len(lengths) > most:
            least_ns = int(np.partition(lengths, -most)[-most]) + 1
            short = sum(length < least_ns for length in lengths)
            note = f"{short:,} boxes shorter than {least_ns / NS_PER_US:.1f} us are left out."
        rows: list[dict[str, Any]] = []
        row_of: dict[str, int] = {}
        for at, track in self._tracks:
            row = self._row(at, track, zero_ns, span_ns, least_ns)
            if row["start"]:
                row_of[f"{track.rank}/{track.name}"] = len(rows) + 1
                rows.append(row)
        path, line = self._path(mark, zero_ns, row_of)
        return {
            "mode": self.shown.mode,
            "step": marks.name[mark],
            "span": span_ns // 100,
            "note": note,
            "rows": [path, *rows],
            "path": line,
        }

    def _row(
        self, at: int, track: Track, zero_ns: int, span_ns: int, least_ns: int
    ) -> dict[str, Any]:
        name = f"rank {track.rank} {track.name}" if self._several else track.name
        boxes = []
        shown = track.between(zero_ns, zero_ns + span_ns)
        for number, box in enumerate(track.slices[shown], shown.start):
            low, high = max(box.start_ns - zero_ns, 0), min(box.end_ns - zero_ns, span_ns)
            if high - low < least_ns:
                continue
            launch = self._launched.get((at, number))
            boxes.append(
                (
                    low // 100,
                    high // 100,
                    self._tables.texts[readable(box.name) if box.name == box.cause else box.name],
                    self._tables.kinds[box.cause or box.kind],
                    -1 if launch is None else max(box.start_ns - launch[0], 0) // 100,
                    self._about(box.node, box.detail, "" if launch is None else launch[1]),
                    self._after(box.node),
                )
            )
        return _row(name, track.rank, boxes)

    def _path(
        self, mark: int, zero_ns: int, row_of: Mapping[str, int]
    ) -> tuple[dict[str, Any], list[tuple[int, int, int]]]:
        """The critical path as a row, on whatever rank; and the rows that it leads through."""
        graph = self.shown.timeline.graph
        boxes: list[tuple[int, ...]] = []
        line: list[tuple[int, int, int]] = []
        for piece in critical_path(self.shown.timeline, mark, self._walker):
            low, high = (
                max(round(us * NS_PER_US) - zero_ns, 0) // 100
                for us in (piece.start_us, piece.end_us)
            )
            if high <= low:
                continue
            cause = Cause(piece.cause).name.lower()
            where, label = "", readable(cause)
            if piece.node >= 0:
                where = graph.resources[graph.nodes_.resource[piece.node]]
                label = graph.labels[piece.node] or label
                if piece.edge == NONE:
                    rank, _, rest = where.partition("/")
                    row = row_of.get(f"{rank}/{rest.replace('/', ' ')}")
                    if row is not None:
                        line.append((row, low, high))
            edge = "" if piece.edge == NONE else EdgeKind(piece.edge).name.lower().replace("_", " ")
            boxes.append(
                (
                    low,
                    high,
                    self._tables.texts[label],
                    self._tables.kinds[cause],
                    -1,
                    self._tables.note(("on", where and f"rank {where}"), ("waiting by", edge)),
                    0,
                )
            )
        return _row(PATH_NAME, None, boxes), line

    def _about(self, node: int, detail: str, launch: str) -> int:
        """Annotation, operators around it, their inputs, and the call that launched it."""
        graph = self.shown.timeline.graph
        if not 0 <= node < len(graph):
            return self._tables.note(("for", detail))
        stack = inputs = ""
        rank, operator_of = self._events.get(int(graph.nodes_.rank[node]), (None, None))
        row = int(graph.nodes_.row[node])
        if rank is not None and operator_of is not None and 0 <= row < len(rank):
            stack, operator = operator_of(row)
            inputs = "" if operator < 0 else rank.strings[int(rank.input_shapes[operator])]
        return self._tables.note(
            ("for", detail),
            ("in", graph.annotations[node]),
            ("operators", stack),
            ("inputs", inputs),
            ("launched by", launch),
        )

    def _after(self, node: int) -> int:
        """What it waited for last, and how."""
        graph, deciding = self.shown.timeline.graph, self._deciding
        if not 0 <= node < len(graph) or deciding.node[node] < 0:
            return 0
        source = int(deciding.node[node])
        kind = EdgeKind(int(deciding.kind[node])).name.lower().replace("_", " ")
        where = graph.resources[graph.nodes_.resource[source]].replace("/", " ")
        name = short_name(graph.labels[source]) or "the start"
        return self._tables.note(("after", f"{name} on rank {where} ({kind})"))


def _launch_starts(
    tracks: Sequence[Track], arrows: Iterable[Arrow]
) -> dict[tuple[int, int], tuple[int, str]]:
    """Per launched box, by track and place: when its launch call began, and what it is."""
    found = {}
    for arrow in arrows:
        track = tracks[arrow.source[0]]
        call = track.slices[arrow.source[1]]
        found[arrow.target] = call.start_ns, f"{call.name} on {track.name}"
    return found


def _row(name: str, rank: int | None, boxes: Sequence[tuple[int, ...]]) -> dict[str, Any]:
    """A row of the page from boxes (start, end, text, kind, launch, about, after); columns that
    hold nothing are left out."""
    names = ("start", "length", "text", "kind", "launch", "about", "after")
    table = np.array(boxes, np.int64).reshape(-1, len(names))
    table[:, 1] -= table[:, 0]
    columns = dict(zip(names, table.T, strict=True))
    columns["start"] = np.diff(columns["start"], prepend=0)
    none = {"launch": -1, "about": 0, "after": 0}
    kept = {k: v.tolist() for k, v in columns.items() if k not in none or (v != none[k]).any()}
    return {"name": name, "rank": rank, **kept}


def _operator_of(rank: RankTrace, links: Links) -> Callable[[int], tuple[str, int]]:
    """Per row of an event: the operators around it, outermost first, and the innermost one."""
    ops = rank.of(Category.CPU_OP)
    parent = np.full(len(rank), NONE, np.int64)
    around = np.full(len(rank), NONE, np.int64)
    calls = rank.of(Category.RUNTIME)
    for thread in np.unique(rank.thread[ops]).tolist():
        boxes = ops[rank.thread[ops] == thread]
        outer = enclosing(rank, boxes)
        parent[boxes] = np.where(outer >= 0, boxes[outer], NONE)
        on_thread = calls[rank.thread[calls] == thread]
        around[on_thread] = innermost(rank, rank.start_us[on_thread], boxes)
    around[ops] = ops
    around[links.device_rows] = launching_op(rank, links)
    stacks: dict[int, str] = {NONE: ""}

    def stack(row: int) -> str:
        chain: list[int] = []
        while row not in stacks:
            chain.append(row)
            row = int(parent[row])
        for each in reversed(chain):
            outer = stacks[int(parent[each])]
            stacks[each] = f"{outer} > {rank.text(each)}" if outer else rank.text(each)
            row = each
        return stacks[row]

    return lambda row: (stack(int(around[row])), int(around[row]))
