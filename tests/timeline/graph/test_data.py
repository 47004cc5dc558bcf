"""Data dependencies of an execution trace between streams."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tiny import COMMS, EtNode, Tiny, edges_of, execution_trace, nodes_named

from perfmodel.timeline.graph import ExecutionGraph, build_graph
from perfmodel.timeline.graph.kinds import EdgeKind
from perfmodel.timeline.schedule import schedule
from perfmodel.trace import Trace

ET = execution_trace(
    EtNode("aten::mm", 10, inputs=(1, 2), outputs=(3,)),
    EtNode("aten::add", 11, inputs=(3, 4), outputs=(5,)),
    EtNode("aten::mul", 12, inputs=(1, 4), outputs=(6,)),
)
"""add reads what mm wrote; mul reads neither."""


def traced(
    steps: int = 1, add_stream: int = COMMS, mm_ends: float = 60, with_ids: bool = True
) -> Trace:
    t = Tiny()
    for step in range(steps):
        at = 300 * step
        t.step(step, at, at + 200)
        for i, (name, stream, kernel) in enumerate(
            [
                ("aten::mm", 7, (15, mm_ends)),
                ("aten::add", add_stream, (70, 100)),
                ("aten::mul", COMMS, (102, 120)),
            ]
        ):
            begun = at + 5 + 6 * i
            ids = {"Record function id": 10 + i} if with_ids else {}
            t.op(name, begun, begun + 5, **ids, **{"Ev Idx": 3 * step + i})
            span = (at + kernel[0], at + kernel[1])
            kernel = name[6:] + "_kernel"
            t.launch(begun + 1, begun + 4, span, kernel, stream, waves=0.5)
        for i in range(4):  # so that what a launch takes is known from elsewhere
            begun = at + 120 + 10 * i
            t.launch(begun, begun + 3, (begun + 9, begun + 10), "other_kernel")
    return replace(t.trace(), execution_traces={0: ET})


def graph_of(trace: Trace) -> ExecutionGraph:
    return build_graph(trace)


def test_a_consumer_on_another_stream_waits_for_its_producer() -> None:
    graph = graph_of(traced())
    assert edges_of(graph, EdgeKind.DATA) == [("mm_kernel", "add_kernel")]
    duration = graph.nodes_.duration_us.copy()
    duration[nodes_named(graph, "mm_kernel")] = 130
    start = schedule(graph, duration).start_us
    assert start[nodes_named(graph, "add_kernel")[0]] == pytest.approx(145, abs=3)


def test_a_consumer_on_the_same_stream_needs_no_edge() -> None:
    assert edges_of(graph_of(traced(add_stream=7)), EdgeKind.DATA) == []


def test_what_the_measurement_contradicts_is_left_out() -> None:
    assert edges_of(graph_of(traced(mm_ends=90)), EdgeKind.DATA) == []


def test_an_edge_in_every_iteration_by_order() -> None:
    graph = graph_of(traced(steps=3, with_ids=False))
    assert edges_of(graph, EdgeKind.DATA) == [("mm_kernel", "add_kernel")] * 3


def test_an_execution_trace_of_another_program_adds_nothing() -> None:
    trace = traced()
    bare = build_graph(replace(trace, execution_traces={}))
    other = replace(trace, execution_traces={0: execution_trace(EtNode("aten::conv2d", 1))})
    assert edges_of(build_graph(other), *EdgeKind) == edges_of(bare, *EdgeKind)
