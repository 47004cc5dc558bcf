"""Timelines for Perfetto and chrome://tracing, predicted next to measured; graphs as GraphML.

Each rank is one process per timeline; its rows are the steps, the critical path, the threads, the
streams and the idle time of the device by cause. Arrows lead from launch calls to what they put
on a stream. Categories are `measured,kernel` and the like, so that the file is never taken for a
recorded trace.

Source: Trace Event Format (chromium.org); Perfetto drops events before time zero and slices that
overlap without nesting, so there are none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from io import BytesIO

import msgspec

from perfmodel.graph.types import ExecutionGraph
from perfmodel.report.tracks import (
    CRITICAL_PATH,
    Arrow,
    Clock,
    Overlay,
    Track,
    first_step_us,
    lead_us,
    tracks_of,
)
from perfmodel.timeline.critical_path import PathWalker, Piece, critical_path
from perfmodel.timeline.idle import DeviceWork, idle_gaps, idle_pieces
from perfmodel.timeline.schedule import Timeline
from perfmodel.units import NS_PER_US


def overlay_of(timeline: Timeline) -> Overlay:
    """The critical path of every step, and every rank's idle time."""
    marks, walker = timeline.graph.marks, PathWalker.of(timeline)
    path: list[Piece] = []
    idle: dict[int, list[Piece]] = {}
    devices = {rank: DeviceWork.of(timeline, rank) for rank in set(marks.rank.tolist())}
    for mark, rank in enumerate(marks.rank.tolist()):
        path += critical_path(timeline, mark, walker)
        begun, over = timeline.end_us[marks.start[mark]], timeline.end_us[marks.end[mark]]
        gaps = idle_gaps(devices[rank], float(begun), float(over))
        idle.setdefault(rank, []).extend(idle_pieces(gaps, walker))
    return Overlay(path, idle)


MEASURED, PREDICTED = "measured", "predicted"
BASELINE, WHAT_IF = "baseline", "what-if"
"""Of a what-if: what is predicted without it, and with it."""


def perfetto_json(
    timelines: Mapping[str, Timeline], overlays: Mapping[str, Overlay] | None = None
) -> bytes:
    """The timelines by name as one JSON document, times in microseconds with three decimals.

    `overlays` are critical path and idle time to show beside the timelines of these names.

    Time zero is the start of the first step, in all timelines; where something began before, it
    is that much earlier in all, and `otherData.first_step_us` says when the first step starts.
    The same input gives the same bytes. Raises `GraphError` when a node has no finite time.
    """
    lead = max((lead_us(timeline) for timeline in timelines.values()), default=0.0)
    text = _Texts()
    events: list[str] = []
    first_flow = 1
    for number, (name, timeline) in enumerate(timelines.items()):
        clock = Clock(first_step_us(timeline) - lead)
        overlay = (overlays or {}).get(name, Overlay())
        tracks, arrows = tracks_of(timeline, overlay, clock)
        rows = _rows(tracks, number, len(timelines))
        events += _names(tracks, rows, name, text)
        for track, (pid, tid) in zip(tracks, rows, strict=True):
            events += _slices(track, pid, tid, name, text)
        events += _flows(tracks, arrows, rows, name, first_flow)
        first_flow += len(arrows)
    head = (
        '{"displayTimeUnit":"ms","otherData":{"tool":"perfmodel",'
        f'"first_step_us":{_us(round(lead * NS_PER_US))}}},"traceEvents":[\n'
    )
    return (head + ",\n".join(events) + "\n]}\n").encode()


class _Texts(dict[str, str]):
    """Texts as JSON strings, each encoded once."""

    def __missing__(self, text: str) -> str:
        clean = text.encode("utf-8", "replace").decode()
        encoded = self[text] = msgspec.json.encode(clean).decode()
        return encoded


def _us(time_ns: int) -> str:
    return f"{time_ns // NS_PER_US}.{time_ns % NS_PER_US:03d}"


def _rows(tracks: list[Track], number: int, timelines: int) -> list[tuple[int, int]]:
    """(process, thread) ids of the tracks: ranks in order, the timelines of a rank together.

    Viewers sort by these, and thread ids are unique in the file, as some viewers need.
    """
    ranks = sorted({track.rank for track in tracks})
    stride = 10 ** max(len(str(len(tracks))), 3)
    pids = {rank: 1 + at * timelines + number for at, rank in enumerate(ranks)}
    return [
        (pids[track.rank], pids[track.rank] * stride + 1 + at) for at, track in enumerate(tracks)
    ]


def _names(
    tracks: list[Track], rows: list[tuple[int, int]], timeline: str, text: _Texts
) -> Iterator[str]:
    """Metadata events: names and order of processes and threads."""
    seen: set[int] = set()
    for track, (pid, tid) in zip(tracks, rows, strict=True):
        if pid not in seen:
            seen.add(pid)
            process = text[f"{timeline} rank {track.rank}"]
            yield _meta("process_name", pid, tid, f'"name":{process}')
            yield _meta("process_sort_index", pid, tid, f'"sort_index":{pid}')
        yield _meta("thread_name", pid, tid, f'"name":{text[track.name]}')
        yield _meta("thread_sort_index", pid, tid, f'"sort_index":{tid}')


def _meta(name: str, pid: int, tid: int, args: str) -> str:
    return f'{{"ph":"M","name":"{name}","pid":{pid},"tid":{tid},"ts":0.000,"args":{{{args}}}}}'


def _slices(track: Track, pid: int, tid: int, timeline: str, text: _Texts) -> Iterator[str]:
    """Complete events; for steps also an instant at each start and end."""
    shared = f'"pid":{pid},"tid":{tid}'
    prefix = (
        f"{timeline},critical_path," if track.name.startswith(CRITICAL_PATH) else f"{timeline},"
    )
    for box in track.slices:
        duration = _us(box.end_ns - box.start_ns)
        detail = f',"for":{text[box.detail]}' if box.detail else ""
        cause = f'"cause":{text[box.cause]},' if box.cause else ""
        yield (
            f'{{"ph":"X","cat":{text[prefix + box.kind]},"name":{text[box.name]},{shared},'
            f'"ts":{_us(box.start_ns)},"dur":{duration},'
            f'"args":{{"kind":{text[box.kind]},{cause}"duration_us":{duration}{detail}}}}}'
        )
        if box.kind == "step":
            for end, time_ns in (("start", box.start_ns), ("end", box.end_ns)):
                yield (
                    f'{{"ph":"i","s":"p","cat":{text[timeline + ",step"]},'
                    f'"name":{text[f"{end} of {box.name}"]},{shared},"ts":{_us(time_ns)}}}'
                )


def _flows(
    tracks: list[Track],
    arrows: list[Arrow],
    rows: list[tuple[int, int]],
    timeline: str,
    first: int,
) -> Iterator[str]:
    """A start within each launch call and an end at what it launched."""
    for number, arrow in enumerate(arrows, first):
        shared = f'"cat":"{timeline},launch","name":"launch","id":{number}'
        for phase, (track, at) in zip(('"ph":"s"', '"ph":"f","bp":"e"'), arrow, strict=True):
            (pid, tid), time = rows[track], _us(tracks[track].slices[at].start_ns)
            yield f'{{{phase},{shared},"pid":{pid},"tid":{tid},"ts":{time}}}'


_NOT_IN_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def graphml(graph: ExecutionGraph) -> bytes:
    """The graph as a GraphML document in UTF-8, node and edge attributes as in `to_networkx`.

    Characters that XML cannot hold become U+FFFD. The same graph gives the same bytes.
    """
    import networkx as nx

    network = graph.to_networkx()
    for _, attributes in network.nodes(data=True):
        attributes["label"] = _NOT_IN_XML.sub("\ufffd", str(attributes["label"]))
    content = BytesIO()
    nx.write_graphml_xml(network, content, encoding="utf-8")
    return content.getvalue()
