"""Device operations that wait for other streams: events, and a device full of another kernel."""

from __future__ import annotations

import numpy as np
import pytest
from tiny import COMMS, COPIES, NCCL, Tiny, edges_of, lags_of, nodes_named

from perfmodel.timeline.graph.kinds import EdgeKind
from perfmodel.timeline.graph.types import ExecutionGraph
from perfmodel.timeline.schedule import measured, schedule

WAITS = EdgeKind.EVENT_WAIT, EdgeKind.EVENT_WAIT_COLLECTIVE


def assert_replays(graph: ExecutionGraph) -> None:
    assert schedule(graph).start_us == pytest.approx(graph.nodes_.start_us, abs=1e-9)


def event_wait(
    consumer: tuple[float, float], with_call: bool = True, name: str = "consumer"
) -> Tiny:
    """A producer on one stream, and a consumer on another that is told to wait for it."""
    t = Tiny()
    t.step(1, 0, 300)
    t.op("aten::a", 5, 60)
    t.launch(6, 10, kernel=(15, 100), name="producer")
    t.call("cudaEventRecord", 12, 13)
    if with_call:
        t.call("cudaStreamWaitEvent", 14, 15)
    t.launch(16, 20, kernel=consumer, name=name, stream=COMMS)
    return t


def test_a_late_start_after_a_stream_wait_is_tied_to_what_ended_just_before() -> None:
    graph = event_wait(consumer=(103, 150)).graph()
    assert edges_of(graph, *WAITS) == [("producer", "consumer")]
    assert lags_of(graph, EdgeKind.EVENT_WAIT) == [3]
    assert_replays(graph)
    duration = graph.nodes_.duration_us.copy()
    duration[nodes_named(graph, "producer")] = 35
    consumer = nodes_named(graph, "consumer")[0]
    assert schedule(graph, duration).start_us[consumer] == 53


def test_waits_of_collectives_have_a_lag_of_their_own() -> None:
    graph = event_wait(consumer=(107, 150), name=NCCL).graph()
    assert edges_of(graph, EdgeKind.EVENT_WAIT_COLLECTIVE) == [("producer", NCCL)]
    assert lags_of(graph, EdgeKind.EVENT_WAIT_COLLECTIVE) == [7]


def test_a_wait_that_cost_nothing_is_kept_between_the_streams_that_the_launches_name() -> None:
    t = Tiny()
    t.step(1, 0, 400)
    for at, end in (0, 100), (200, 230):
        t.op("aten::a", at + 5, at + 90)
        t.launch(at + 6, at + 10, kernel=(at + 15, end), name="producer")
        t.call("cudaStreamWaitEvent", at + 14, at + 15)
        start = 103 if at == 0 else 262
        t.launch(at + 50, at + 55, kernel=(start, start + 10), name="consumer", stream=COMMS)
    graph = t.graph()
    assert edges_of(graph, *WAITS) == [("producer", "consumer")] * 2
    # Were the second producer longer, its consumer would wait.
    duration = graph.nodes_.duration_us.copy()
    producer, consumer = (nodes_named(graph, name)[1] for name in ("producer", "consumer"))
    duration[producer] = 130
    assert schedule(graph, duration).start_us[consumer] == 215 + 130 + 3


def test_a_wait_that_the_measurement_contradicts_is_left_out() -> None:
    assert edges_of(event_wait(consumer=(25, 50)).graph(), *WAITS) == []


def test_without_a_stream_wait_a_late_start_is_no_event_wait() -> None:
    assert edges_of(event_wait(consumer=(103, 150), with_call=False).graph(), *WAITS) == []


def test_a_stream_wait_before_nothing_does_no_harm() -> None:
    t = event_wait(consumer=(25, 50))
    t.call("cudaStreamWaitEvent", 280, 281)
    assert edges_of(t.graph(), *WAITS) == []


def full_device(
    big_end: float, small_start: float, waves: float = 4.0, copies: bool = False
) -> Tiny:
    """A kernel of four waves from 30 on, and one on another stream that starts late."""
    t = Tiny()
    t.step(1, 0, 600)
    t.op("aten::a", 5, 60)
    t.launch(6, 10, kernel=(30, big_end), name="big", waves=waves)
    launch = t.copy if copies else t.launch
    launch(16, 20, (small_start, small_start + 20), name="small", stream=COPIES)
    t.op("aten::b", 400, 450)
    t.launch(405, 410, kernel=(430, 440), name="later", stream=COPIES)
    return t


def test_a_kernel_waits_for_the_last_wave_of_one_that_fills_the_device() -> None:
    # Four waves in 200 us: the last of them begins at 30 + 150.
    graph = full_device(big_end=230, small_start=180).graph()
    assert edges_of(graph, EdgeKind.SM_OCCUPANCY) == [("big", "small")]
    edges = graph.edges_
    at = np.flatnonzero(edges.kind == EdgeKind.SM_OCCUPANCY)
    assert edges.overlap_frac[at].tolist() == [0.25]
    assert edges.lag_us[at].tolist() == [0]
    assert_replays(graph)
    duration = graph.nodes_.duration_us.copy()
    duration[nodes_named(graph, "big")] /= 2
    assert schedule(graph, duration).start_us[nodes_named(graph, "small")[0]] == 30 + 75


def test_a_kernel_that_does_not_fill_the_device_holds_nothing_back() -> None:
    graph = full_device(big_end=230, small_start=180, waves=0.5).graph()
    assert edges_of(graph, EdgeKind.SM_OCCUPANCY) == []


def test_where_the_waves_are_not_known_the_end_of_the_kernel_counts() -> None:
    graph = full_device(big_end=230, small_start=232, waves=0).graph()
    assert edges_of(graph, EdgeKind.SM_OCCUPANCY) == [("big", "small")]
    assert graph.edges_.overlap_frac[graph.edges_.kind == EdgeKind.SM_OCCUPANCY].tolist() == [0]


def test_a_copy_needs_no_place_on_the_device() -> None:
    graph = full_device(big_end=230, small_start=180, copies=True).graph()
    assert edges_of(graph, EdgeKind.SM_OCCUPANCY) == []


def test_a_start_in_the_first_half_of_the_other_kernel_has_another_reason() -> None:
    graph = full_device(big_end=230, small_start=120).graph()
    assert edges_of(graph, EdgeKind.SM_OCCUPANCY) == []


def test_kernels_of_one_stream_follow_each_other() -> None:
    t = Tiny()
    t.step(1, 0, 100)
    t.op("aten::a", 5, 60)
    for i in range(3):
        t.launch(10 * i + 6, 10 * i + 10, kernel=(40 + 12 * i, 50 + 12 * i), name=f"k{i}")
    graph = t.graph()
    assert edges_of(graph, EdgeKind.STREAM) == [("k0", "k1"), ("k1", "k2")]
    assert lags_of(graph, EdgeKind.STREAM) == [2]
    assert measured(graph).step_us == schedule(graph).step_us


def test_branches_of_a_graph_on_one_stream_run_side_by_side() -> None:
    t = Tiny()
    t.step(1, 0, 600)
    branches = [(20.0, 500.0), (25.0, 505.0), (30.0, 510.0)]
    t.launch(5, 10, branches, call="cudaGraphLaunch")
    t.call("cudaDeviceSynchronize", 30, 520)
    graph = t.graph()
    assert schedule(graph).step_us == pytest.approx(measured(graph).step_us, rel=0.02)


def test_streams_of_one_number_on_two_devices_are_two() -> None:
    t = Tiny()
    t.op("aten::a", 0, 60)
    t.kernel(10, 20, "a", correlation=t.call("cudaLaunchKernel", 1, 2), device=0)
    t.kernel(30, 40, "b", correlation=t.call("cudaLaunchKernel", 3, 4), device=1)
    graph = t.graph()
    assert edges_of(graph, EdgeKind.STREAM) == []
    assert set(graph.resources) == {"0/main", "0/gpu0/stream7", "0/gpu1/stream7"}
