"""Calls that wait for the device: synchronising ones, told or not, and those that free memory."""

from __future__ import annotations

from timeline.graph.handmade import assert_replays, halved, node_of, span
from tiny import COPIES, GEMM, Tiny, edges_of, lags_of, nodes_named

from perfmodel.timeline.graph.kinds import EdgeKind
from perfmodel.timeline.schedule import schedule

SYNC_STREAM, SYNC_DEVICE = "cudaStreamSynchronize", "cudaDeviceSynchronize"


# Synchronising calls


def synchronised(call: str = SYNC_STREAM, waits_us: float = 60) -> Tiny:
    """A kernel of 60 us; the host waits for it and goes on 4 us after its end."""
    t = Tiny()
    t.step(1, 0, 200)
    t.op("aten::mm", 10, 30)
    t.launch(15, 20, kernel=(25, 85))
    t.call(call, 30, 32)  # nothing of another stream to wait for: what the call itself takes
    t.op("aten::item", 40, 100)
    t.call(call, 45, 89)
    return t


def test_a_synchronising_call_is_split_into_wait_and_work() -> None:
    graph = synchronised().graph()
    # The first call returns while the kernel runs: it waited for nothing.
    first, second = nodes_named(graph, SYNC_STREAM)
    assert span(graph, first) == (30, 2)
    assert span(graph, second) == (87, 2)
    assert (GEMM, SYNC_STREAM) in edges_of(graph, EdgeKind.HOST_SYNC)
    assert lags_of(graph, EdgeKind.HOST_SYNC) == [2]
    assert_replays(graph)


def test_a_shorter_kernel_shortens_the_wait_and_the_step() -> None:
    assert halved(synchronised().graph(), GEMM) == 200 - 30


def test_a_call_that_waits_for_nothing_stays_work() -> None:
    t = Tiny()
    t.step(1, 0, 100)
    t.op("aten::mm", 10, 30)
    t.launch(15, 20, kernel=(25, 35))
    t.call(SYNC_STREAM, 50, 55)
    graph = t.graph()
    assert span(graph, node_of(graph, SYNC_STREAM)) == (50, 5)
    assert halved(graph, GEMM) == 100


def two_streams(call: str) -> Tiny:
    t = Tiny()
    t.step(1, 0, 200)
    t.op("aten::mm", 5, 30)
    t.launch(6, 10, kernel=(12, 90), name="long")
    t.launch(16, 20, kernel=(22, 60), name="short", stream=COPIES)
    t.call(call, 40, 95)
    return t


def test_a_device_synchronise_waits_for_every_stream() -> None:
    graph = two_streams(SYNC_DEVICE).graph()
    assert edges_of(graph, EdgeKind.HOST_SYNC) == [("long", SYNC_DEVICE), ("short", SYNC_DEVICE)]
    assert_replays(graph)
    # Without the long kernel, the short one holds the host: it ends 30 us earlier.
    duration = graph.nodes_.duration_us.copy()
    duration[nodes_named(graph, "long")] = 0
    assert schedule(graph, duration).step_us[0] == 170


def test_a_stream_synchronise_waits_for_one_kernel_only() -> None:
    graph = two_streams(SYNC_STREAM).graph()
    assert edges_of(graph, EdgeKind.HOST_SYNC) == [("long", SYNC_STREAM)]


def test_what_the_trace_says_of_a_synchronise_decides_which_stream_it_waited_for() -> None:
    t = two_streams(SYNC_STREAM)
    t.events.pop()
    correlation = t.call(SYNC_STREAM, 40, 95)
    t.event("cuda_sync", "Stream Synchronize", (40, 95), 0, correlation=correlation, stream=COPIES)
    assert edges_of(t.graph(), EdgeKind.HOST_SYNC) == [("short", SYNC_STREAM)]


def test_a_synchronise_that_returns_before_another_stream_ends_did_not_wait_for_it() -> None:
    t = Tiny()
    t.step(1, 0, 200)
    t.op("aten::mm", 5, 30)
    t.launch(6, 10, kernel=(12, 60), name="awaited")
    t.launch(16, 20, kernel=(22, 80), name="runs on", stream=COPIES)
    t.call("cudaEventSynchronize", 40, 64)
    graph = t.graph()
    assert edges_of(graph, EdgeKind.HOST_SYNC) == [("awaited", "cudaEventSynchronize")]


def test_a_kernel_launched_after_a_synchronise_is_not_what_it_waited_for() -> None:
    t = Tiny()
    t.step(1, 0, 100)
    t.launch(6, 10, kernel=(12, 40), name="before")
    t.call(SYNC_DEVICE, 20, 45)
    t.op("aten::mm", 50, 70)
    t.launch(55, 60, kernel=(61, 62), name="after")
    assert edges_of(t.graph(), EdgeKind.HOST_SYNC) == [("before", SYNC_DEVICE)]


def test_a_launch_that_begins_in_the_microsecond_of_a_synchronise_was_before_it() -> None:
    t = Tiny()
    t.step(1, 0, 100)
    t.op("aten::mm", 0, 30)
    t.launch(30, 31, kernel=(33, 45))  # whole microseconds
    t.call(SYNC_STREAM, 30, 50)
    assert_replays(t.graph())


# Synchronisations that the profiler dropped


def hidden(gap_ends: float = 5040) -> Tiny:
    t = Tiny()
    t.step(1, 0, 6000)
    t.op("aten::mm", 10, 30)
    t.launch(15, 20, kernel=(25, 5000))
    t.op("reducer", 40, 50)
    t.call("cudaEventElapsedTime", gap_ends, gap_ends + 2)
    return t


def test_a_long_silence_before_elapsed_time_is_a_wait() -> None:
    graph = hidden().graph()
    assert edges_of(graph, EdgeKind.HIDDEN_SYNC) == [(GEMM, "")]
    assert lags_of(graph, EdgeKind.HIDDEN_SYNC) == [40]
    assert_replays(graph)
    assert halved(graph, GEMM) == 6000 - 4975 / 2


def test_a_short_silence_before_elapsed_time_is_host_work() -> None:
    t = Tiny()
    t.step(1, 0, 2000)
    t.op("aten::mm", 10, 30)
    t.launch(15, 20, kernel=(25, 900))
    t.call("cudaEventElapsedTime", 940, 942)
    assert edges_of(t.graph(), EdgeKind.HIDDEN_SYNC) == []


def test_a_silence_long_after_the_last_kernel_is_host_work() -> None:
    assert edges_of(hidden(gap_ends=5700).graph(), EdgeKind.HIDDEN_SYNC) == []


# The allocator


def freed(call: str = "cudaFree", returned: float = 95) -> Tiny:
    t = Tiny()
    t.step(1, 0, 200)
    t.op("aten::mm", 5, 30)
    t.launch(6, 10, kernel=(12, 85))
    t.op("aten::empty", 35, 120)
    t.call(call, 40, returned)
    return t


def test_freeing_device_memory_waits_for_the_device() -> None:
    graph = freed().graph()
    assert edges_of(graph, EdgeKind.ALLOCATOR) == [(GEMM, "cudaFree")]
    assert span(graph, node_of(graph, "cudaFree")) == (85, 10)
    assert_replays(graph)
    # 36.5 us less for the kernel, of which the free itself keeps its 10 us.
    assert halved(graph, GEMM) == 200 - 36.5


def test_allocating_waits_for_nothing() -> None:
    graph = freed("cudaMalloc").graph()
    assert edges_of(graph, EdgeKind.ALLOCATOR) == []
    assert span(graph, node_of(graph, "cudaMalloc")) == (40, 55)


def test_freeing_in_stream_order_waits_for_nothing() -> None:
    graph = freed("cudaFreeAsync", returned=70).graph()
    assert edges_of(graph, EdgeKind.ALLOCATOR) == []
    assert_replays(graph)
