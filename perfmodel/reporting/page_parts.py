"""Pieces of the page: tables, cards, figures, the timeline as JSON; every text is escaped."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from perfmodel.graph.kinds import Cause, EdgeKind
from perfmodel.plot import colours_of
from perfmodel.plot.names import short_name, text_of
from perfmodel.plot.style import readable
from perfmodel.reporting.perfetto import overlay_of
from perfmodel.reporting.tracks import STEPS, Arrow, Clock, Overlay, Track, tracks_of
from perfmodel.timeline.critical_path import PathWalker, critical_path
from perfmodel.timeline.schedule import Timeline, deciding_edges
from perfmodel.trace.categories import Category
from perfmodel.trace.columns import NONE, RankTrace
from perfmodel.trace.link import Links, enclosing, innermost, launching_op
from perfmodel.units import NS_PER_US

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from perfmodel.trace import Trace


def section(name: str, title: str, *content: str) -> str:
    """A section of the page under a heading."""
    return f'<section id="{name}"><h2>{escape(title)}</h2>{"".join(content)}</section>'


def paragraph(text: str) -> str:
    """One paragraph of plain text."""
    return f"<p>{escape(text)}</p>"


def items(texts: Iterable[str]) -> str:
    """A list of plain texts."""
    return f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>"


def numbered(rows: Iterable[tuple[str, str]]) -> str:
    """A ranked list: a plain text each, and below it what to type."""
    shown = "".join(
        f"<li>{escape(text)}<code>{escape(command)}</code></li>" for text, command in rows
    )
    return f'<ol class="ranked">{shown}</ol>'


LONG_NAME = 72
"""Of a text in a table: of a longer one, such as a kernel's with its arguments, a part is shown."""


def cards(figures: Mapping[str, str]) -> str:
    """Short figures with what they are."""
    shown = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
        for name, value in figures.items()
    )
    return f'<dl class="cards">{shown}</dl>'


def sortable(columns: Sequence[str], rows: Iterable[Sequence[object]], caption: str) -> str:
    """A table whose headings are buttons that sort it; numbers keep their full value to sort by."""
    head = "".join(
        f'<th scope="col" aria-sort="none"><button type="button">{escape(name)}</button></th>'
        for name in columns
    )
    body = "".join(f"<tr>{''.join(map(_cell, row, columns))}</tr>" for row in rows)
    return (
        f'<div class="wide"><table class="sortable"><caption>{escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cell(value: object, column: str) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return f'<td class="number" data-value="{value!r}">{escape(text_of(value, column))}</td>'
    text = text_of(value)
    if len(text) <= LONG_NAME:
        return f"<td>{escape(text)}</td>"
    shown = short_name(text)
    cut = shown if len(shown) <= LONG_NAME else shown[: LONG_NAME - 1] + "…"
    return f'<td title="{escape(text)}">{escape(cut)}</td>'


def picture(figure: Figure, caption: str) -> str:
    """A figure as vector graphics within the page."""
    from perfmodel.plot.figure import svg_text

    return f"<figure>{svg_text(figure)}<figcaption>{escape(caption)}</figcaption></figure>"


def data(name: str, value: Any) -> str:
    """`value` as JSON that the page's script reads; nothing in it can end the element."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    safe = text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return f'<script type="application/json" id="{name}">{safe}</script>'


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


class _Tables:
    """Texts, kinds and notes by first use, each stored once."""

    def __init__(self) -> None:
        self.texts: dict[str, int] = {}
        self.kinds: dict[str, int] = {}
        self.notes: dict[tuple[Fact, ...], int] = {(): 0}

    def text(self, text: str) -> int:
        return self.texts.setdefault(text, len(self.texts))

    def kind(self, kind: str) -> int:
        return self.kinds.setdefault(kind, len(self.kinds))

    def note(self, *facts: Fact) -> int:
        return self.notes.setdefault(facts, len(self.notes))


class _Source:
    """One timeline: its tracks on one clock, and what is known of its nodes."""

    def __init__(self, shown: Shown, trace: Trace | None, tables: _Tables) -> None:
        self.shown, self._tables = shown, tables
        timeline = shown.timeline
        overlay = Overlay((), overlay_of(timeline).idle)
        tracks, arrows = tracks_of(timeline, overlay, Clock(0.0))
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
        columns = _Columns(name, track.rank)
        shown = track.between(zero_ns, zero_ns + span_ns)
        for number, box in enumerate(track.slices[shown], shown.start):
            low, high = max(box.start_ns - zero_ns, 0), min(box.end_ns - zero_ns, span_ns)
            if high - low < least_ns:
                continue
            launch = self._launched.get((at, number))
            columns.add(
                (low // 100, high // 100),
                self._tables.text(readable(box.name) if box.name == box.cause else box.name),
                self._tables.kind(box.cause or box.kind),
                -1 if launch is None else max(box.start_ns - launch[0], 0) // 100,
                self._about(box.node, box.detail, "" if launch is None else launch[1]),
                self._after(box.node),
            )
        return columns.row()

    def _path(
        self, mark: int, zero_ns: int, row_of: Mapping[str, int]
    ) -> tuple[dict[str, Any], list[tuple[int, int, int]]]:
        """The critical path as a row, on whatever rank; and the rows that it leads through."""
        graph = self.shown.timeline.graph
        columns = _Columns(PATH_NAME, None)
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
            columns.add(
                (low, high),
                self._tables.text(label),
                self._tables.kind(cause),
                -1,
                self._tables.note(*_facts(("on", where and f"rank {where}"), ("waiting by", edge))),
                0,
            )
        return columns.row(), line

    def _about(self, node: int, detail: str, launch: str) -> int:
        """Annotation, operators around it, their inputs, and the call that launched it."""
        graph = self.shown.timeline.graph
        if not 0 <= node < len(graph):
            return self._tables.note(*_facts(("for", detail)))
        stack = inputs = ""
        rank, operator_of = self._events.get(int(graph.nodes_.rank[node]), (None, None))
        row = int(graph.nodes_.row[node])
        if rank is not None and operator_of is not None and 0 <= row < len(rank):
            stack, operator = operator_of(row)
            inputs = "" if operator < 0 else rank.strings[int(rank.input_shapes[operator])]
        within = graph.annotations[node]
        return self._tables.note(
            *_facts(
                ("for", detail),
                ("in", within),
                ("operators", stack),
                ("inputs", inputs),
                ("launched by", launch),
            )
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


def _facts(*facts: Fact) -> Iterator[Fact]:
    return (fact for fact in facts if fact[1])


def _launch_starts(
    tracks: Sequence[Track], arrows: Iterable[Arrow]
) -> dict[tuple[int, int], tuple[int, str]]:
    """Per launched box, by track and place: when its launch call began, and what it is."""
    return {
        arrow.target: (
            tracks[arrow.source[0]].slices[arrow.source[1]].start_ns,
            f"{tracks[arrow.source[0]].slices[arrow.source[1]].name} "
            f"on {tracks[arrow.source[0]].name}",
        )
        for arrow in arrows
    }


class _Columns:
    """A row of the page being filled; columns that hold nothing are left out."""

    def __init__(self, name: str, rank: int | None) -> None:
        self._name, self._rank = name, rank
        self._boxes: list[tuple[int, ...]] = []

    def add(self, ends: tuple[int, int], *values: int) -> None:
        self._boxes.append((ends[0], ends[1] - ends[0], *values))

    def row(self) -> dict[str, Any]:
        names = ("start", "length", "text", "kind", "launch", "about", "after")
        table = np.array(self._boxes, np.int64).reshape(-1, len(names))
        columns = dict(zip(names, table.T, strict=True))
        columns["start"] = np.diff(columns["start"], prepend=0)
        none = {"launch": -1, "about": 0, "after": 0}
        kept = {k: v.tolist() for k, v in columns.items() if k not in none or (v != none[k]).any()}
        return {"name": self._name, "rank": self._rank, **kept}


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
