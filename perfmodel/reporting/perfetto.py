"""What other tools read: timelines for Perfetto, graphs as GraphML.

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
from typing import Any

import msgspec

from perfmodel.base.units import NS_PER_US
from perfmodel.reporting.tracks import CRITICAL_PATH, Tracks, first_step, tracks_of
from perfmodel.timeline.figures import whole_text
from perfmodel.timeline.graph.types import ExecutionGraph
from perfmodel.timeline.schedule import Timeline

_Place = dict[str, int]
"""Ids of process and thread."""


def perfetto_json(timelines: Mapping[str, Timeline]) -> bytes:
    """The timelines by name as one JSON document, times in microseconds with three decimals.

    Time zero is the start of the first step, in all timelines; where something began before, it
    is that much earlier in all, and `otherData.first_step_us` says when the first step starts.
    The same input gives the same bytes. Raises `GraphError` when a node has no finite time.
    """
    begun = {name: first_step(timeline) for name, timeline in timelines.items()}
    lead = max((lead_us for _, lead_us in begun.values()), default=0.0)
    events: list[dict[str, Any]] = []
    first_flow = 1
    for number, (name, timeline) in enumerate(timelines.items()):
        tracks = tracks_of(timeline, begun[name][0] - lead)
        # Viewers sort by ids: ranks in order, the timelines of a rank together; thread ids are
        # unique in the file, as some viewers need.
        ranks = sorted({rank for rank, _ in tracks.names})
        stride = 10 ** max(len(str(len(tracks.names))), 3)
        pids = {rank: 1 + at * len(timelines) + number for at, rank in enumerate(ranks)}
        places = [
            {"pid": pids[rank], "tid": pids[rank] * stride + 1 + at}
            for at, (rank, _) in enumerate(tracks.names)
        ]
        events += _names(tracks, places, name)
        events += _slices(tracks, places, name)
        events += _flows(tracks, places, name, first_flow)
        first_flow += len(tracks.arrows)
    other = {"tool": "perfmodel", "first_step_us": _us(round(lead * NS_PER_US))}
    head = msgspec.json.encode({"displayTimeUnit": "ms", "otherData": other})
    lines = b",\n".join(map(msgspec.json.Encoder().encode, events))
    return head[:-1] + b',"traceEvents":[\n' + lines + b"\n]}\n"


def _us(time_ns: int) -> msgspec.Raw:
    """Microseconds with three decimals, as they are."""
    return msgspec.Raw(f"{time_ns // NS_PER_US}.{time_ns % NS_PER_US:03d}")


def _names(tracks: Tracks, places: list[_Place], timeline: str) -> Iterator[dict[str, Any]]:
    """Metadata events: names and order of processes and threads."""
    seen: set[int] = set()
    for (rank, track), place in zip(tracks.names, places, strict=True):
        named: dict[str, dict[str, str | int]] = {}
        if place["pid"] not in seen:
            seen.add(place["pid"])
            named["process_name"] = {"name": f"{timeline} rank {rank}"}
            named["process_sort_index"] = {"sort_index": place["pid"]}
        named["thread_name"] = {"name": whole_text(track)}
        named["thread_sort_index"] = {"sort_index": place["tid"]}
        for name, args in named.items():
            yield {"ph": "M", "name": name, **place, "ts": _us(0), "args": args}


def _slices(tracks: Tracks, places: list[_Place], timeline: str) -> Iterator[dict[str, Any]]:
    """Complete events; for steps also an instant at each start and end."""
    on_path = [name.startswith(CRITICAL_PATH) for _, name in tracks.names]
    for box in tracks.boxes.itertuples():
        place, duration, name = places[box.track], _us(box.end_ns - box.start_ns), box.name
        prefix = f"{timeline},critical_path" if on_path[box.track] else timeline
        args = {"kind": box.kind, "cause": box.cause, "duration_us": duration, "for": box.detail}
        yield {
            "ph": "X",
            "cat": f"{prefix},{box.kind}",
            "name": name,
            **place,
            "ts": _us(box.start_ns),
            "dur": duration,
            "args": {key: value for key, value in args.items() if value != ""},
        }
        if box.kind == "step":
            for end, time_ns in (("start", box.start_ns), ("end", box.end_ns)):
                mark = {"ph": "i", "s": "p", "cat": f"{timeline},step", "name": f"{end} of {name}"}
                yield {**mark, **place, "ts": _us(time_ns)}


def _flows(
    tracks: Tracks, places: list[_Place], timeline: str, first: int
) -> Iterator[dict[str, Any]]:
    """A start within each launch call and an end at what it launched."""
    track, start_ns = (tracks.boxes[name].tolist() for name in ("track", "start_ns"))
    phases: tuple[dict[str, str], ...] = ({"ph": "s"}, {"ph": "f", "bp": "e"})
    for number, arrow in enumerate(tracks.arrows.tolist(), first):
        shared = {"cat": f"{timeline},launch", "name": "launch", "id": number}
        for phase, row in zip(phases, arrow, strict=True):
            yield {**phase, **shared, **places[track[row]], "ts": _us(start_ns[row])}


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
