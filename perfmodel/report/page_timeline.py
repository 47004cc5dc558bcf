"""One step of a timeline as compact JSON, which the page's script draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perfmodel.plot import colours_of
from perfmodel.plot.style import readable
from perfmodel.report.overlay import overlay_of
from perfmodel.report.tracks import CRITICAL_PATH, GPU_IDLE, STEPS, Clock, Track, tracks_of
from perfmodel.timeline.schedule import Timeline
from perfmodel.units import NS_PER_US

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
    """The boxes of one row that lie within the step, cut at its ends."""
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
        text.append(texts.setdefault(_text(box.name, box.detail), len(texts)))
        group = box.cause if by_cause and box.cause else box.kind
        kind.append(kinds.setdefault(group, len(kinds)))
    return {
        "name": track.name,
        "start": _deltas(start),
        "length": length,
        "text": text,
        "kind": kind,
    }


def _text(name: str, detail: str) -> str:
    return f"{name} ({detail})" if detail else name


def _deltas(values: Sequence[int]) -> list[int]:
    """The first value, then each one's distance from the one before: fewer digits."""
    return [value - before for before, value in zip((0, *values), values, strict=False)]
