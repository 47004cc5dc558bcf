"""What other tools read: timelines for Perfetto, graphs as GraphML, linked traces for Chakra.

Each rank is one process per timeline; its rows are the steps, the critical path, the threads, the
streams and the idle time of the device by cause. Arrows lead from launch calls to what they put
on a stream. Categories are `measured,kernel` and the like, so that the file is never taken for a
recorded trace.

Source: Trace Event Format (chromium.org); Perfetto drops events before time zero and slices that
overlap without nesting, so there are none. Chakra: schema/protobuf/et_def.proto and what its
converter and feeder call the attributes (`is_cpu_op comm_type comm_size pg_name`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from io import BytesIO
from typing import Any

import msgspec
import numpy as np

from perfmodel.base.arrays import Ints
from perfmodel.base.units import NS_PER_US
from perfmodel.ops.read.arguments import of_event
from perfmodel.ops.spec import is_known, item_bytes
from perfmodel.reporting.tracks import CRITICAL_PATH, Tracks, first_step, tracks_of
from perfmodel.timeline.graph.kinds import Cause, EdgeKind, NodeKind, Scope
from perfmodel.timeline.graph.types import ExecutionGraph, whole_text
from perfmodel.timeline.schedule import Timeline
from perfmodel.trace.chakra import NODE_TYPES, messages
from perfmodel.trace.columns import NONE, RankTrace
from perfmodel.trace.link import launching_op, link

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
    on_path = [name.startswith(CRITICAL_PATH) for _, name in tracks.names]
    for box in tracks.boxes.itertuples():
        prefix = f"{timeline},critical_path" if on_path[box.track] else timeline
        args = {"kind": box.kind, "cause": box.cause, "for": box.detail}
        yield {
            "ph": "X",
            "cat": f"{prefix},{box.kind}",
            "name": box.name,
            **places[box.track],
            "ts": _us(box.start_ns),
            "dur": _us(box.end_ns - box.start_ns),
            "args": {key: value for key, value in args.items() if value != ""},
        }


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


CHAKRA_VERSION = "0.0.4"
LINKED_SCHEMA = "perfmodel.linked/1"
COLLECTIVE_TYPES = (
    *("all_reduce", "reduce", "all_gather", "gather", "scatter", "broadcast", "all_to_all"),
    *("reduce_scatter", "reduce_scatter_block", "barrier"),
)
"""Chakra's `CollectiveCommType`, by its numbers."""


def chakra_linked(graph: ExecutionGraph, rank: RankTrace) -> bytes:
    """The measured graph of one rank as a linked Chakra trace: a node for every piece of a thread
    and every operation of a stream, and all that each waited for.

    So the order of every stream is in `data_deps`, which a link of execution trace and profile
    loses. Host pieces do not overlap and exclude waiting: a simulator may add them up. Times are
    whole microseconds, each end rounded, so that rounding does not add up; `start_us` and
    `duration_us` are the exact ones. `dep_kinds`, `dep_lags_us` and `dep_overlap_fracs` say of each
    dependency what it is and what Chakra cannot express of it. A collective of unknown size is a
    `COMP_NODE` of its measured length. The same graph gives the same bytes.
    """
    from google.protobuf.proto import serialize_length_prefixed

    kinds = messages()
    metadata = kinds.metadata(version=CHAKRA_VERSION)
    set_attributes(metadata, {"schema": LINKED_SCHEMA, "rank": rank.rank})
    nodes, edges, order = graph.nodes_, graph.edges_, graph.order
    node_id = np.empty(len(order), np.int64)
    node_id[order] = np.arange(1, len(order) + 1)
    by_target = np.argsort(edges.target, kind="stable")
    first = np.searchsorted(edges.target[by_target], np.arange(len(graph) + 1))
    collectives = _collectives(graph, rank)
    zero_us = min(float(nodes.start_us.min(initial=0.0)), 0.0)
    marks = dict(zip(graph.marks.start.tolist(), graph.marks.name, strict=True))
    marks |= {
        end: f"end of {name}"
        for end, name in zip(graph.marks.end.tolist(), graph.marks.name, strict=True)
    }
    out = BytesIO()
    serialize_length_prefixed(metadata, out)
    for at in order.tolist():
        deps = by_target[first[at] : first[at + 1]]
        kind = NodeKind(nodes.kind[at])
        start_us, end_us = float(nodes.start_us[at]), float(nodes.end_us[at])
        node = kinds.node(
            id=int(node_id[at]),
            name=marks.get(at) or graph.labels[at] or kind.name.lower(),
            type=NODE_TYPES.index("COMM_COLL_NODE" if at in collectives else "COMP_NODE"),
            data_deps=node_id[edges.source[deps]].tolist(),
            start_time_micros=round(start_us - zero_us),
            duration_micros=round(end_us - zero_us) - round(start_us - zero_us),
        )
        attributes: dict[str, Any] = {
            "is_cpu_op": not bool(graph.on_device[at]),
            "resource": graph.resources[nodes.resource[at]],
            "node_kind": kind.name.lower(),
            "node_cause": Cause(nodes.cause[at]).name.lower(),
            "node_scope": Scope(nodes.scope[at]).name.lower(),
            "start_us": start_us,
            "duration_us": float(nodes.duration_us[at]),
            **collectives.get(at, {}),
        }
        if len(deps):
            attributes["dep_kinds"] = [EdgeKind(k).name.lower() for k in edges.kind[deps]]
            attributes["dep_lags_us"] = edges.lag_us[deps].tolist()
            attributes["dep_overlap_fracs"] = edges.overlap_frac[deps].tolist()
        if np.isfinite(nodes.release_us[at]):
            attributes["release_us"] = float(nodes.release_us[at])
        set_attributes(node, attributes)
        serialize_length_prefixed(node, out)
    return out.getvalue()


def _collectives(graph: ExecutionGraph, rank: RankTrace) -> dict[int, dict[str, Any]]:
    """Per node that is a collective of known kind and size: the attributes that a simulator wants.

    What the file says stands on the kernel (since 2024) or on the operator that launched it.
    """
    rows = np.flatnonzero((graph.nodes_.kind == NodeKind.COLLECTIVE) & (graph.nodes_.row >= 0))
    links = link(rank)
    launched_by = np.full(len(rank), NONE, np.int64)
    launched_by[links.device_rows] = launching_op(rank, links)
    said: Ints = rank.collective
    result: dict[int, dict[str, Any]] = {}
    for at in rows.tolist():
        row = int(graph.nodes_.row[at])
        row = row if said[row] >= 0 else int(launched_by[row])
        if row < 0 or said[row] < 0:
            continue
        known = of_event(rank, row)
        dtype, elements = known.get("dtype", ""), int(known.get("in_elements", "-1"))
        if known.get("collective") in COLLECTIVE_TYPES and is_known(dtype) and elements >= 0:
            result[at] = {
                "comm_type": COLLECTIVE_TYPES.index(known["collective"]),
                "comm_size": int(elements * item_bytes(dtype)),
                "pg_name": known.get("process_group", ""),
            }
    return result


_KINDS = {bool: "bool", int: "int64", float: "double", str: "string"}


def set_attributes(message: Any, attributes: Mapping[str, Any]) -> None:
    """Attributes of a Chakra message: values of one of its types, or lists of them."""
    for name, value in attributes.items():
        attribute = message.attr.add(name=name)
        if isinstance(value, list):
            getattr(attribute, f"{_KINDS[type(value[0])]}_list").values.extend(value)
        else:
            setattr(attribute, f"{_KINDS[type(value)]}_val", value)
