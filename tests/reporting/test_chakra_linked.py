"""Linked Chakra traces: read back by deps and times alone, they give the same account."""

from __future__ import annotations

from dataclasses import asdict
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf.proto import parse_length_prefixed

from perfmodel import read
from perfmodel.prediction.result import summarise
from perfmodel.reporting.perfetto import chakra_linked
from perfmodel.timeline.graph.build import build_rank
from perfmodel.timeline.graph.kinds import Cause, EdgeKind, NodeKind, Scope
from perfmodel.timeline.graph.types import Edges, ExecutionGraph, Nodes, StepMarks
from perfmodel.timeline.schedule import measured, schedule
from perfmodel.trace.chakra import messages

TRACES = ("dlrm_v100x8/kineto_rank0.json.gz", "critical_path/a100_event_sync.json.gz")


def nodes_of(content: bytes) -> list[tuple[Any, dict[str, Any]]]:
    """The nodes of a Chakra stream with their attributes by name."""
    stream, found = BytesIO(content), []
    parse_length_prefixed(messages().metadata, stream)
    while node := parse_length_prefixed(messages().node, stream):
        values = {each.name: getattr(each, each.WhichOneof("value")) for each in node.attr}
        found.append((node, {k: list(getattr(v, "values", [])) or v for k, v in values.items()}))
    return found


def graph_of(content: bytes) -> ExecutionGraph:
    """The graph that the nodes and their dependencies are; ids are the places of nodes plus 1."""
    nodes = nodes_of(content)
    names = list(dict.fromkeys(each["resource"] for _, each in nodes))
    column = {key: [each[f"node_{key}"] for _, each in nodes] for key in ("kind", "cause", "scope")}
    table = Nodes(
        kind=np.array([NodeKind[each.upper()] for each in column["kind"]], np.int8),
        cause=np.array([Cause[each.upper()] for each in column["cause"]], np.int8),
        scope=np.array([Scope[each.upper()] for each in column["scope"]], np.int8),
        rank=np.zeros(len(nodes), np.int32),
        resource=np.array([names.index(each["resource"]) for _, each in nodes], np.int32),
        row=np.full(len(nodes), -1, np.int32),
        start_us=np.array([each["start_us"] for _, each in nodes]),
        duration_us=np.array([each["duration_us"] for _, each in nodes]),
        release_us=np.array([each.get("release_us", -np.inf) for _, each in nodes]),
    )
    rows = [
        (source - 1, node.id - 1, EdgeKind[kind.upper()], overlap, lag)
        for node, each in nodes
        for source, kind, overlap, lag in zip(
            node.data_deps,
            each.get("dep_kinds", []),
            each.get("dep_overlap_fracs", []),
            each.get("dep_lags_us", []),
            strict=True,
        )
    ]
    source, target, kind, overlap, lag = map(np.array, zip(*rows, strict=True))
    edges = Edges.of(source, target, kind, overlap_frac=overlap, lag_us=lag)
    marks = [(node.id - 1, node.name) for node, each in nodes if each["node_kind"] == "mark"]
    ends = {name.removeprefix("end of "): at for at, name in marks if name.startswith("end of ")}
    begun = {name: at for at, name in marks if not name.startswith("end of ")}
    steps = sorted(begun, key=lambda name: float(table.start_us[begun[name]]))
    places = [np.array([of[name] for name in steps]) for of in (begun, ends)]
    marked = StepMarks(np.zeros(len(steps), np.int64), tuple(steps), *places)
    texts = tuple(node.name for node, _ in nodes)
    return ExecutionGraph(table, edges, marked, tuple(names), texts, ("",) * len(texts))


@pytest.mark.parametrize("name", TRACES)
def test_read_back_it_gives_the_same_breakdown(name: str, reference: Path) -> None:
    trace = read(reference / "traces" / name)
    graph = build_rank(trace.ranks[0], trace.links[0])
    back = graph_of(chakra_linked(graph, trace.ranks[0]))
    for make in (measured, schedule):
        one, other = (
            asdict(summarise(make(each), hardware="x", mode="measured").rank)
            for each in (graph, back)
        )
        for key, value in one.items():
            if isinstance(value, float):
                assert other[key] == pytest.approx(value, abs=1.0), key


@pytest.mark.parametrize("name", TRACES)
def test_the_order_of_streams_is_in_the_dependencies(name: str, reference: Path) -> None:
    trace = read(reference / "traces" / name)
    content = chakra_linked(build_rank(trace.ranks[0], trace.links[0]), trace.ranks[0])
    streams: dict[str, list[Any]] = {}
    for node, each in nodes_of(content):
        assert all(source < node.id for source in node.data_deps)
        if not each["is_cpu_op"]:
            streams.setdefault(each["resource"], []).append((each["start_us"], node))
    assert streams
    for on in streams.values():
        ordered = [node for _, node in sorted(on, key=lambda pair: (pair[0], pair[1].id))]
        for before, after in pairwise(ordered):
            assert before.id in after.data_deps


def test_rounding_does_not_add_up(reference: Path) -> None:
    trace = read(reference / "traces" / TRACES[0])
    for node, each in nodes_of(
        chakra_linked(build_rank(trace.ranks[0], trace.links[0]), trace.ranks[0])
    ):
        end_us = each["start_us"] + each["duration_us"]
        shift_us = node.start_time_micros - each["start_us"]
        assert node.start_time_micros + node.duration_micros - shift_us == pytest.approx(
            end_us, abs=1.0
        )
