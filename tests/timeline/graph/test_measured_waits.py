"""Waits that nothing explains stay in the replay; those whose reason can be told have a cause."""

from __future__ import annotations

import numpy as np
import pytest
from tiny import COMMS, Tiny, nodes_named

from perfmodel.prediction.what_if import Scale, what_if
from perfmodel.timeline.critical_path import critical_path
from perfmodel.timeline.graph.kinds import Cause, NodeKind, Scope
from perfmodel.timeline.graph.types import ExecutionGraph
from perfmodel.timeline.schedule import measured, schedule


def waits_of(graph: ExecutionGraph) -> list[tuple[str, str, float]]:
    """(label, cause, microseconds) of the waits that were kept, in order of time."""
    nodes = graph.nodes_
    chosen = [n for n, label in enumerate(graph.labels) if label.startswith("wait before")]
    return [
        (graph.labels[n], Cause(nodes.cause[n]).name.lower(), float(nodes.duration_us[n]))
        for n in sorted(chosen, key=lambda n: float(nodes.start_us[n]))
    ]


def late(gap_us: float) -> ExecutionGraph:
    """Two kernels of one stream, launched early; the second begins `gap_us` after the first."""
    t = Tiny()
    t.step(1, 0, 2000)
    t.op("aten::a", 1, 50)
    t.launch(2, 4, (10, 100), "first")
    t.launch(5, 7, (100 + gap_us, 200 + gap_us), "second")
    t.call("cudaDeviceSynchronize", 60, 205 + gap_us)
    return t.graph()


def test_a_gap_that_an_edge_can_take_is_no_wait() -> None:
    assert waits_of(late(15)) == []


def test_a_gap_that_nothing_explains_is_kept_and_belongs_to_no_usual_what_if() -> None:
    graph = late(1000)
    assert waits_of(graph) == [("wait before second", "unexplained", 1000)]
    wait = graph.labels.index("wait before second")
    assert graph.nodes_.scope[wait] == Scope.UNEXPLAINED
    assert graph.nodes_.kind[wait] == NodeKind.WAIT
    assert schedule(graph).step_us == pytest.approx(measured(graph).step_us)
    second = nodes_named(graph, "second")[0]
    everything = [Scale.parse(f"{scope}=0") for scope in ("gpu", "host")]
    halved = [Scale.parse("unexplained=0.5")]
    duration = graph.nodes_.duration_us
    assert schedule(*what_if(graph, duration, everything)).start_us[second] > 1000
    start_us = schedule(*what_if(graph, duration, halved)).start_us[second]
    assert start_us == pytest.approx(graph.nodes_.start_us[second] - 500)


def test_its_time_on_the_critical_path_has_its_cause() -> None:
    graph = late(1000)
    for timeline in measured(graph), schedule(graph):
        path = critical_path(timeline, 0)
        assert path.by_cause()["unexplained"] == pytest.approx(1000)
        assert sum(p.end_us - p.start_us for p in path) == pytest.approx(2000)


def test_the_first_operation_of_a_stream_waits_like_any_other() -> None:
    t = Tiny()
    t.op("aten::copy_", 0, 20)
    t.launch(2, 4, (8000, 8010), "copy")
    t.launch(5, 7, (8012, 8100), "kernel")
    graph = t.graph()
    assert waits_of(graph) == [("wait before copy", "unexplained", pytest.approx(7996))]
    assert schedule(graph).step_us == pytest.approx([8100])
    path = critical_path(measured(graph), 0).by_cause()
    assert "before_window" not in path
    assert path["unexplained"] == pytest.approx(7996)


def test_an_operation_without_a_launch_is_from_before_the_window() -> None:
    t = Tiny()
    t.op("aten::copy_", 0, 20)
    t.kernel(8000, 8010, "earlier")
    t.launch(5, 7, (8012, 8100), "kernel")
    path = critical_path(measured(t.graph()), 0).by_cause()
    assert path["before_window"] == pytest.approx(8000)


def test_it_is_unexplained_where_the_device_worked_meanwhile() -> None:
    t = Tiny()
    t.step(1, 0, 9000)
    t.op("aten::copy_", 1, 20)
    t.launch(2, 4, (10, 4000), "other", stream=COMMS)
    t.launch(5, 7, (8000, 8010), "copy")
    assert [cause for _, cause, _ in waits_of(t.graph())] == ["unexplained"]


def test_a_wait_set_by_another_thread_than_the_one_that_launches_next() -> None:
    t = Tiny()
    t.step(1, 0, 3000)
    t.op("aten::a", 1, 50)
    t.op("backward", 10, 40, thread=2)
    t.launch(2, 4, (6, 20), "ahead")
    t.launch(12, 14, (20, 2000), "producer", stream=COMMS, thread=2)
    t.call("cudaStreamWaitEvent", 20, 21, thread=2)
    t.launch(45, 47, (2003, 2100), "consumer")
    t.call("cudaDeviceSynchronize", 60, 2105)
    graph = t.graph()
    assert waits_of(graph) == []
    consumer = nodes_named(graph, "consumer")[0]
    assert graph.labels[int(graph.edges_.source[_deciding(graph, consumer)])] == "producer"


def test_a_stream_wait_whose_streams_the_file_names() -> None:
    t = Tiny()
    t.step(1, 0, 3000)
    t.op("aten::a", 1, 50)
    t.launch(2, 4, (6, 20), "producer", stream=COMMS)
    recorded = t.call("cudaEventRecord", 5, 6)
    t.launch(7, 8, (20, 2000), "later", stream=COMMS)
    called = t.call("cudaStreamWaitEvent", 9, 10)
    stated = {"wait_on_stream": COMMS, "wait_on_cuda_event_record_corr_id": recorded}
    t.event("cuda_sync", "Stream Wait Event", (9, 10), 7, stream=7, correlation=called, **stated)
    t.launch(12, 14, (22, 30), "consumer")
    graph = t.graph()
    pairs = {
        (graph.labels[s], graph.labels[d])
        for s, d in zip(graph.edges_.source, graph.edges_.target, strict=True)
    }
    assert ("producer", "consumer") in pairs
    assert ("later", "consumer") not in pairs


def test_a_synchronisation_that_returns_just_before_what_it_waited_for_by_the_clocks() -> None:
    t = Tiny()
    t.step(1, 0, 5000)
    t.op("aten::a", 1, 50)
    t.launch(2, 4, (6, 300), "other", stream=COMMS)
    t.launch(5, 7, (10, 4003), "awaited")
    t.call("cudaStreamSynchronize", 60, 4000)
    graph = t.graph()
    assert waits_of(graph) == []
    assert critical_path(measured(graph), 0).by_cause().get("unexplained", 0) == 0


def test_waiting_for_requests_is_a_cause_of_its_own_and_no_host_work() -> None:
    t = Tiny()
    t.op("aten::a", 0, 20)
    t.launch(2, 4, (10, 100), "decode")
    t.event("python_function", "queue.py(154): get", (200, 5000), 1)
    t.op("aten::b", 5010, 5030)
    t.launch(5012, 5014, (5020, 5100), "decode")
    graph = t.graph()
    by_cause = critical_path(measured(graph), 0).by_cause()
    assert by_cause["waiting_for_input"] == pytest.approx(4800)
    host = Scale.parse("host=0").matches(graph)
    assert not host[graph.nodes_.cause == Cause.WAITING_FOR_INPUT].any()
    assert Scale.parse("input=0").matches(graph).any()


@pytest.mark.parametrize(
    ("name", "waits"),
    [
        ("queue.py(154): get", True),
        ("multiprocessing/connection.py(413): _recv", True),
        ("/site/zmq/sugar/socket.py(800): recv_multipart", True),
        ("<built-in method poll of select.poll object at 0x7f>", True),
        ("sglang/srt/managers/scheduler.py(1): recv_requests", True),
        ("<built-in method select of Tensor object at 0x7f>", False),
        ("torch/nn/functional.py(1): embedding", False),
    ],
)
def test_which_functions_wait_for_input(name: str, waits: bool) -> None:
    from perfmodel.trace.categories import INPUT_WAIT_NAME

    assert bool(INPUT_WAIT_NAME.search(name)) == waits


def _deciding(graph: ExecutionGraph, node: int) -> int:
    edges, nodes = graph.edges_, graph.nodes_
    into = np.flatnonzero(edges.target == node)
    return int(into[np.argmax(edges.ready_us(nodes.start_us, nodes.duration_us)[into])])
