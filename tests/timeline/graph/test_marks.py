"""Step boundaries in the graph, and traces that hold only part of what a graph is made of."""

from __future__ import annotations

import pytest
from tiny import GEMM, WORKER, Tiny, nodes_named

from perfmodel.errors import TraceError
from perfmodel.timeline.graph import ExecutionGraph, build_graph
from perfmodel.timeline.graph.kinds import Cause
from perfmodel.timeline.schedule import measured, schedule
from perfmodel.trace import Trace


def two_steps() -> Tiny:
    t = Tiny()
    for number, at in (7, 0), (8, 100):
        t.step(number, at, at + 90)
        t.op("aten::mm", at + 10, at + 40)
        t.launch(at + 15, at + 20, kernel=(at + 30, at + 60))
    return t


def halved(graph: ExecutionGraph, label: str) -> list[float]:
    duration = graph.nodes_.duration_us.copy()
    duration[nodes_named(graph, label)] /= 2
    found: list[float] = schedule(graph, duration).step_us.tolist()
    return found


def test_a_mark_stands_at_each_start_and_end() -> None:
    graph = two_steps().graph()
    marks = graph.marks
    assert (marks.name, marks.rank.tolist()) == (("ProfilerStep#7", "ProfilerStep#8"), [0, 0])
    assert graph.nodes_.start_us[marks.start].tolist() == [0, 100]
    assert graph.nodes_.start_us[marks.end].tolist() == [90, 190]
    assert measured(graph).step_us.tolist() == [90, 90]
    assert schedule(graph).step_us.tolist() == [90, 90]


def test_a_step_ends_with_the_host_not_with_the_device() -> None:
    t = two_steps()
    t.kernel(60, 150, correlation=t.call("cudaLaunchKernel", 50, 55), name="long")
    graph = t.graph()
    assert measured(graph).step_us.tolist() == [90, 90]
    assert halved(graph, "long") == [90, 90]


def test_marks_move_with_the_work_before_them() -> None:
    graph = two_steps().graph()
    duration = graph.nodes_.duration_us / 2
    timeline = schedule(graph, duration)
    assert timeline.step_us.tolist() == [45, 45]
    assert timeline.end_us[graph.marks.start].tolist() == [0, 50]


def test_a_call_across_the_end_of_a_step_does_not_pin_it() -> None:
    t = Tiny()
    t.step(1, 0, 100)
    t.step(2, 100, 200)
    t.op("aten::mm", 5, 20)
    t.launch(10, 15, kernel=(20, 95))
    t.call("cudaDeviceSynchronize", 50, 101)  # whole microseconds: it ended with its step
    t.op("aten::mm", 105, 120)
    t.launch(110, 115, kernel=(120, 180))
    t.call("cudaDeviceSynchronize", 150, 190)
    graph = t.graph()
    assert halved(graph, GEMM) == pytest.approx([100 - 37.5, 100 - 30], abs=6)


def test_a_window_ends_with_everything() -> None:
    t = Tiny()
    t.op("aten::mm", 0, 40)
    t.launch(15, 20, kernel=(30, 120))
    t.op("read", 20, 70, WORKER)
    graph = t.graph()
    assert (graph.marks.name, measured(graph).step_us.tolist()) == (("window",), [120])
    end = int(graph.marks.end[0])
    before = graph.edges_.source[graph.edges_.target == end]
    assert {graph.labels[node] for node in before} == {"aten::mm", "read", GEMM}
    assert halved(graph, GEMM) == [75]


def test_a_window_that_ends_with_an_annotation_lasts_as_long_in_the_replay() -> None:
    t = Tiny()
    t.note("serve", 0, 1000)
    t.op("aten::mm", 10, 500)
    graph = t.graph()
    assert schedule(graph).step_us == pytest.approx(measured(graph).step_us)


def test_a_trace_of_kernels_alone_has_a_graph() -> None:
    t = Tiny()
    t.kernel(0, 10)
    t.kernel(12, 30)
    graph = t.graph()
    assert measured(graph).step_us.tolist() == [30]
    assert schedule(graph).step_us.tolist() == [30]


def test_an_execution_trace_alone_is_an_error() -> None:
    with pytest.raises(TraceError, match=r"et\.json: an execution trace without timings"):
        build_graph(Trace("et.json", (), {}))


def test_a_trace_that_was_sampled_names_its_gaps_so() -> None:
    t = Tiny()
    for number in range(4):
        t.op("aten::mm", 10 * number, 10 * number + 5, **{"External id": 1 + 10 * number})
    assert t.graph().unknown == Cause.RECORDING_MISSING
    assert two_steps().graph().unknown == Cause.UNEXPLAINED


def test_names_and_annotations_of_nodes() -> None:
    t = Tiny()
    t.step(1, 0, 100)
    t.note("## forward ##", 10, 60)
    t.op("aten::mm", 20, 50)
    t.launch(30, 35, kernel=(40, 45))
    graph = t.graph()
    found = list(zip(graph.labels, graph.annotations, strict=True))
    assert found[1:4] == [
        ("aten::mm", "## forward ##"),
        ("cudaLaunchKernel", "## forward ##"),
        ("aten::mm", "## forward ##"),
    ]
    assert (GEMM, "") in found


def test_steps_before_and_after_the_first_work() -> None:
    t = Tiny()
    t.op("before", 0, 10)
    t.step(1, 20, 50)
    t.op("aten::mm", 30, 40)
    t.op("after", 60, 80)
    graph = t.graph()
    assert halved(graph, "aten::mm") == [30 - 5 - 5]
    assert halved(graph, "after") == [30 - 5]  # the gap after its step's operator is named so
    assert halved(graph, "before") == [30]
