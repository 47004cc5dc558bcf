"""Pieces of the page: tables, cards, figures, the timeline as JSON; every text is escaped."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.plot import colours_of
from perfmodel.plot.names import text_of
from perfmodel.plot.style import readable
from perfmodel.report.perfetto import overlay_of
from perfmodel.report.tracks import CRITICAL_PATH, GPU_IDLE, STEPS, Clock, Track, tracks_of
from perfmodel.timeline.schedule import Timeline
from perfmodel.units import NS_PER_US

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return (
        f'<div class="wide"><table class="sortable"><caption>{escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cell(value: object) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return f'<td class="number" data-value="{value!r}">{escape(text_of(value))}</td>'
    return f"<td>{escape(text_of(value))}</td>"


def picture(figure: Figure, caption: str) -> str:
    """A figure as vector graphics within the page."""
    from perfmodel.plot.figure import svg_text

    return f"<figure>{svg_text(figure)}<figcaption>{escape(caption)}</figcaption></figure>"


def data(name: str, value: Any) -> str:
    """`value` as JSON that the page's script reads; nothing in it can end the element."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    safe = text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return f'<script type="application/json" id="{name}">{safe}</script>'


BY_CAUSE = (CRITICAL_PATH, GPU_IDLE)


def step_view(timeline: Timeline, mark: int, name: str) -> dict[str, Any]:
    """What runs on the rank of step `mark` of the graph while it lasts, by rows of the page.

    `rows`: name, and per box start and length in units of 0.1 us after the start of the step,
    index of its text, index of its kind (`kinds`: text and colour). Texts are stored once.
    """
    marks = timeline.graph.marks
    begin_us = float(timeline.end_us[marks.start[mark]])
    end_us = float(timeline.end_us[marks.end[mark]])
    rank = int(marks.rank[mark])
    tracks, _ = tracks_of(timeline, overlay_of(timeline), Clock(begin_us))
    shown = [track for track in tracks if track.rank == rank and not track.name.startswith(STEPS)]
    texts: dict[str, int] = {}
    kinds: dict[str, int] = {}
    span_ns = round((end_us - begin_us) * NS_PER_US)
    rows = [_row(track, span_ns, texts, kinds) for track in shown]
    colours = colours_of(kinds)
    return {
        "name": name,
        "step": f"{marks.name[mark]}, rank {rank}",
        "span": span_ns // 100,
        "rows": [row for row in rows if row["start"]],
        "texts": list(texts),
        "kinds": [[readable(kind), colours[kind]] for kind in kinds],
    }


def _row(
    track: Track, span_ns: int, texts: dict[str, int], kinds: dict[str, int]
) -> dict[str, Any]:
    """The boxes of one row that lie within the step, cut at its ends; starts as differences."""
    by_cause = track.name.startswith(BY_CAUSE)
    start: list[int] = []
    length: list[int] = []
    text: list[int] = []
    kind: list[int] = []
    for box in track.slices:
        low, high = max(box.start_ns, 0), min(box.end_ns, span_ns)
        if high <= low:
            continue
        start.append(low // 100)
        length.append(high // 100 - low // 100)
        shown = f"{box.name} ({box.detail})" if box.detail else box.name
        text.append(texts.setdefault(shown, len(texts)))
        group = box.cause if by_cause and box.cause else box.kind
        kind.append(kinds.setdefault(group, len(kinds)))
    return {
        "name": track.name,
        "start": np.diff(start, prepend=0).tolist(),
        "length": length,
        "text": text,
        "kind": kind,
    }
