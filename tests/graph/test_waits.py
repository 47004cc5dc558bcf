"""What host threads wait for: each mechanism alone, in a trace whose answer is checked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tiny import (
    AUTOGRAD,
    COMMS,
    COPIES,
    EVALUATE,
    GEMM,
    WORKER,
    Tiny,
    edges_of,
    lags_of,
    nodes_named,
)

from perfmodel.graph import waits
from perfmodel.graph.kinds import Cause, EdgeKind, NodeKind
from perfmodel.graph.types import ExecutionGraph
from perfmodel.timeline.schedule import measured, schedule

SYNC_STREAM, SYNC_DEVICE = "cudaStreamSynchronize", "cudaDeviceSynchronize"


def node_of(graph: ExecutionGraph, label: str, kind: int | None = None, nth: int = 0) -> int:
    return nodes_named(graph, label, kind)[nth]


def span(graph: ExecutionGraph, node: int) -> tuple[float, float]:
    """(start, duration) of the work of a node, waiting excluded."""
    return float(graph.nodes_.start_us[node]), float(graph.nodes_.duration_us[node])


def halved(graph: ExecutionGraph, *labels: str, kind: int | None = None) -> float:
    """The first step when the nodes of these labels take half as long."""
    duration = graph.nodes_.duration_us.copy()
    for label in labels:
        duration[nodes_named(graph, label, kind)] /= 2
    return float(schedule(graph, duration).step_us[0])


def assert_replays(graph: ExecutionGraph) -> None:
    assert schedule(graph).step_us == pytest.approx(measured(graph).step_us, abs=1e-9)


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


# Blocking copies


def blocking_copy(name: str = "Memcpy DtoH (Device -> Pageable)", returned: float = 115) -> Tiny:
    """A kernel, then a copy of 10 us behind it that its call waits for; ordinary copies beside."""
    t = Tiny()
    t.step(1, 0, 200)
    for start in 2, 8, 14:
        t.copy(start, start + 4, copy=(start + 6, start + 7), stream=COPIES)
    t.op("aten::mm", 20, 30)
    t.launch(22, 26, kernel=(30, 100))
    t.op("aten::item", 40, 120)
    t.copy(50, returned, copy=(101, 111), name=name)
    return t


@pytest.mark.parametrize("name", ["Memcpy DtoH (Device -> Pageable)", "Memcpy DtoH"])
def test_a_copy_that_its_call_waits_for(name: str) -> None:
    graph = blocking_copy(name).graph()
    issue, back = nodes_named(graph, "cudaMemcpyAsync")[-2:]
    assert span(graph, issue) == (50, 4)
    assert (NodeKind(graph.nodes_.kind[back]), span(graph, back)) == (NodeKind.WAIT, (115, 0))
    assert edges_of(graph, EdgeKind.BLOCKING_COPY) == [(name, "cudaMemcpyAsync")]
    assert lags_of(graph, EdgeKind.BLOCKING_COPY) == [4]
    assert_replays(graph)
    assert halved(graph, GEMM) == 165


def test_a_copy_that_ends_after_its_call_does_not_block() -> None:
    graph = blocking_copy("Memcpy HtoD (Pinned -> Device)", returned=108).graph()
    assert edges_of(graph, EdgeKind.BLOCKING_COPY) == []


def test_where_every_copy_blocks_waiting_is_not_taken_for_what_a_copy_call_costs() -> None:
    t = Tiny()
    t.step(1, 0, 400)
    for at in 0, 200:
        t.op("aten::mm", at + 20, at + 30)
        t.launch(at + 22, at + 26, kernel=(at + 30, at + 100))
        t.op("aten::item", at + 40, at + 120)
        t.copy(
            at + 50, at + 115, copy=(at + 101, at + 111), name="Memcpy DtoH (Device -> Pageable)"
        )
    assert halved(t.graph(), GEMM) < 400 - 60


def test_a_short_copy_to_pageable_memory_is_waited_for_all_the_same() -> None:
    t = Tiny()
    t.step(1, 0, 100)
    t.op("aten::item", 10, 50)
    t.copy(20, 30, copy=(25, 28), name="Memcpy DtoH (Device -> Pageable)")
    graph = t.graph()
    assert edges_of(graph, EdgeKind.BLOCKING_COPY) != []
    assert_replays(graph)
    # A copy of 100 us more holds the host 100 us longer.
    duration = graph.nodes_.duration_us.copy()
    duration[nodes_named(graph, "Memcpy DtoH (Device -> Pageable)")] += 100
    assert schedule(graph, duration).step_us[0] == 200


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


# Main thread and autograd thread


def backward(last_end: float = 90) -> Tiny:
    """The main thread sleeps from 20 to 100 while the autograd thread works from 26 to 90."""
    t = Tiny()
    t.step(1, 0, 150)
    t.op("aten::forward", 0, 20)
    t.op(EVALUATE + "A", 26, 50, AUTOGRAD)
    t.op(EVALUATE + "B", 55, last_end, AUTOGRAD)
    t.op("aten::after", 100, 110)
    return t


A, B = EVALUATE + "A", EVALUATE + "B"


def test_hand_over_and_hand_back() -> None:
    graph = backward().graph()
    assert edges_of(graph, EdgeKind.HAND_OVER) == [("aten::after", A)]
    assert edges_of(graph, EdgeKind.HAND_BACK) == [(B, "aten::after")]
    before, back, _ = nodes_named(graph, "aten::after")
    # 6 us until the other thread begins, and 10 us after it has ended; the 64 us follow.
    assert (span(graph, before), span(graph, back)) == ((20, 6), (90, 10))
    assert_replays(graph)
    assert halved(graph, A) == 150 - 12
    assert halved(graph, "aten::forward") == 150 - 10


def test_the_autograd_thread_follows_the_main_thread_in_every_step() -> None:
    t = Tiny()
    for step in range(3):
        at = 200 * step
        t.step(step, at, at + 150)
        t.op("aten::forward", at, at + 20)
        t.op(A, at + 26, at + 90, AUTOGRAD)
        t.op("aten::after", at + 100, at + 110)
    graph = t.graph()
    assert_replays(graph)
    duration = graph.nodes_.duration_us.copy()
    duration[nodes_named(graph, A)] += 50
    assert schedule(graph, duration).step_us.tolist() == [200, 200, 200]


def woken_for_a_task(with_last_op: bool) -> ExecutionGraph:
    """The autograd thread wakes the main thread for a task at 60, and works on until 95 or 90."""
    t = backward(75 if with_last_op else 90)
    t.op("hook", 60, 65)
    if with_last_op:
        t.op(EVALUATE + "C", 75, 95, AUTOGRAD)
    return t.graph()


def test_a_main_thread_that_wakes_in_between_waits_twice() -> None:
    graph = woken_for_a_task(with_last_op=True)
    assert edges_of(graph, EdgeKind.HAND_OVER) == [("hook", A)]
    assert edges_of(graph, EdgeKind.HAND_BACK) == [(A, "hook"), (EVALUATE + "C", "aten::after")]
    assert_replays(graph)
    # Half of B's 20 us, and of the 5 us before it, which carry its name.
    assert halved(graph, B) == 150 - 12.5


def test_an_operator_during_which_the_main_thread_was_busy_is_waited_for() -> None:
    graph = woken_for_a_task(with_last_op=False)
    assert edges_of(graph, EdgeKind.HAND_BACK) == [(A, "hook"), (B, "aten::after")]
    assert halved(graph, B) == 150 - 20


def test_a_gap_that_another_thread_fills_little_of_is_host_work() -> None:
    t = Tiny()
    t.step(1, 0, 150)
    t.op("aten::forward", 0, 20)
    t.op(A, 26, 40, AUTOGRAD)
    t.op("aten::after", 100, 110)
    assert edges_of(t.graph(), EdgeKind.HAND_OVER, EdgeKind.HAND_BACK) == []


def test_another_thread_that_sleeps_before_and_after_was_woken() -> None:
    t = Tiny()
    t.step(1, 0, 150)
    t.op("aten::a", 0, 20)
    t.op("read", 26, 90, WORKER)
    t.op("aten::after", 100, 110)
    assert edges_of(t.graph(), EdgeKind.HAND_OVER) == [("aten::after", "read")]


@pytest.mark.parametrize("first", [0, 6])
def test_another_thread_that_works_all_the_time_is_independent(first: int) -> None:
    t = Tiny()
    t.step(1, 0, 150)
    t.op("aten::a", 0, 20)
    for start in range(first, 140, 20):
        t.op("read", start, start + 20, WORKER)
    t.op("aten::after", 100, 110)
    assert edges_of(t.graph(), EdgeKind.HAND_OVER, EdgeKind.HAND_BACK) == []


def test_an_autograd_thread_that_overlaps_the_gap_by_rounding_keeps_its_work() -> None:
    t = Tiny()
    t.step(1, 0, 300)
    t.op("aten::forward", 0, 100)
    t.op(A, 10, 102, AUTOGRAD)
    t.op(B, 102, 270, AUTOGRAD)
    t.op("aten::after", 280, 290)
    graph = t.graph()
    assert np.isfinite(schedule(graph).start_us).all()
    assert span(graph, node_of(graph, A)) == (10, 92)


def test_an_operator_that_began_after_a_gap_did_not_end_it() -> None:
    # Neighbours within a microsecond or two, as in files of nanosecond resolution.
    t = Tiny()
    t.step(1, 0, 20)
    t.op("aten::a", 0, 9)
    t.op("aten::b", 10, 10.5)
    t.op("aten::c", 13, 20)
    t.op(A, 11, 12.5, AUTOGRAD)
    graph = t.graph()
    assert edges_of(graph, EdgeKind.HAND_OVER) == [("aten::c", A)]
    assert edges_of(graph, EdgeKind.HAND_BACK) == [(A, "aten::c")]
    assert_replays(graph)


# Collectives on host threads (Gloo)


def gloo(*spans: tuple[float, float], threads: int = 1, wait_ends: float = 100) -> Tiny:
    t = Tiny()
    t.step(1, 0, 150)
    for i in range(len(spans)):
        t.op("c10d::allreduce_", 5 + 10 * i, 8 + 10 * i)
    t.op("aten::mm", 30, 40)
    t.note("Awaitable.wait()", 40, wait_ends)
    t.op("aten::after", wait_ends, wait_ends + 10)
    for i, (start, end) in enumerate(spans):
        t.note("gloo:all_reduce", start, end, WORKER + i % threads)
    return t


def test_a_host_collective_is_issued_by_the_main_thread_and_awaited_by_it() -> None:
    graph = gloo((10, 90)).graph()
    collective = node_of(graph, "gloo:all_reduce")
    assert NodeKind(graph.nodes_.kind[collective]) == NodeKind.COLLECTIVE
    assert edges_of(graph, EdgeKind.HOST_COLLECTIVE) == [("c10d::allreduce_", "gloo:all_reduce")]
    assert lags_of(graph, EdgeKind.HOST_COLLECTIVE) == [2]
    assert edges_of(graph, EdgeKind.HAND_BACK) == [("gloo:all_reduce", "aten::after")]
    assert_replays(graph)
    assert halved(graph, "gloo:all_reduce") == 150 - 40


def test_a_host_collective_that_nobody_waits_for_is_hidden() -> None:
    graph = gloo((10, 25)).graph()
    assert edges_of(graph, EdgeKind.HAND_BACK) == []
    assert halved(graph, "gloo:all_reduce") == 150


def test_a_host_collective_beside_a_main_thread_of_annotations_alone() -> None:
    t = Tiny()
    t.note("## forward ##", 0, 100)
    t.note("gloo:all_reduce", 20, 40, WORKER)
    graph = t.graph()
    assert span(graph, node_of(graph, "gloo:all_reduce")) == (20, 20)


def test_a_host_collective_issued_before_the_window_begins_when_it_did() -> None:
    t = Tiny()
    t.note("gloo:all_reduce", 0, 50, WORKER)
    t.op("aten::mm", 20, 40)
    t.note("Awaitable.wait()", 40, 60)
    t.op("aten::after", 60, 70)
    graph = t.graph()
    assert float(schedule(graph).start_us[node_of(graph, "gloo:all_reduce")]) == 0
    assert_replays(graph)


def test_a_thread_of_one_operator_beside_a_host_collective_begins_when_it_did() -> None:
    t = Tiny()
    t.step(1, 0, 100)
    t.op("aten::mm", 0, 5)
    t.op("aten::mm", 6, 8)
    t.op("read", 10, 20, AUTOGRAD)
    t.note("gloo:all_reduce", 20, 40, WORKER)
    graph = t.graph()
    assert float(schedule(graph).start_us[node_of(graph, "read")]) == 10


def test_host_collectives_one_behind_the_other_keep_their_time() -> None:
    graph = gloo((20, 50), (50, 90)).graph()
    assert [span(graph, node)[1] for node in nodes_named(graph, "gloo:all_reduce")] == [30, 40]
    assert_replays(graph)


def test_host_collectives_that_overlap_by_rounding_keep_their_time() -> None:
    graph = gloo((20, 51), (50, 90)).graph()
    times = [span(graph, node)[1] for node in nodes_named(graph, "gloo:all_reduce")]
    assert sum(times) == pytest.approx(70, abs=1.1)


@pytest.mark.parametrize("spans", [((20, 90), (22, 60)), ((20, 60), (22, 90))])
def test_of_two_host_collectives_the_later_ends_the_wait(
    spans: tuple[tuple[float, float], ...],
) -> None:
    graph = gloo(*spans, threads=2).graph()
    wait = nodes_named(graph, "aten::after", NodeKind.WAIT)
    assert [span(graph, node) for node in wait] == [(90, 10)]
    assert len(edges_of(graph, EdgeKind.HAND_BACK)) == 2


# The launch queue


def queued(*kernels_us: float, depth: int = 8) -> Tiny:
    """Kernels of these durations, in turn, 120 in all. Once `depth` of them wait, a launch call
    returns 6 us after the end of the kernel `depth` before its own; else it takes 5 us."""
    t = Tiny()
    now, ends = 0.0, [-1.0]
    for i in range(120):
        returned = max(now + 5, ends[i + 1 - depth] + 6 if i >= depth else 0)
        start = max(now + 10, ends[-1] + 1)
        ends.append(start + kernels_us[i % len(kernels_us)])
        t.launch(now, returned, kernel=(start, ends[-1]))
        now = returned + 5
    t.step(1, 0, now)
    return t


@pytest.mark.parametrize("kernels_us", [(10, 10, 10, 100), (100,)])
def test_launch_calls_wait_for_a_place_in_the_queue(
    monkeypatch: pytest.MonkeyPatch, kernels_us: tuple[float, ...]
) -> None:
    monkeypatch.setattr(waits, "QUEUE_DEPTHS", range(5, 12))
    graph = queued(*kernels_us).graph()
    step_us = float(measured(graph).step_us[0])
    assert len(edges_of(graph, EdgeKind.LAUNCH_QUEUE)) == 120 - 8
    assert schedule(graph).step_us[0] == pytest.approx(step_us, rel=0.01)
    assert halved(graph, GEMM) == pytest.approx(step_us / 2, rel=0.15)
    assert halved(graph, "cudaLaunchKernel") == pytest.approx(step_us, rel=0.02)


def test_short_queues_never_fill() -> None:
    assert edges_of(queued(10, 10, 10, 100).graph(), EdgeKind.LAUNCH_QUEUE) == []


# Early kernels, the allocator


def test_a_call_that_goes_on_after_its_kernel_began_issues_first() -> None:
    t = Tiny()
    t.step(1, 0, 500)
    for start in 10, 40, 70:
        t.launch(start, start + 10, kernel=(start + 15, start + 20))
    t.launch(100, 200, kernel=(115, 300))
    t.call(SYNC_DEVICE, 210, 305)
    graph = t.graph()
    issue, rest = nodes_named(graph, "cudaLaunchKernel")[-2:]
    assert (span(graph, issue), span(graph, rest)) == ((100, 15), (115, 85))
    assert Cause(graph.nodes_.cause[rest]) == Cause.HOST_T4
    # A kernel cannot start before its call has issued it: with constants, lags stay plausible.
    assert 0 <= lags_of(graph, EdgeKind.LAUNCH)[0] <= 10


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


# The first pieces, and launches without a length


def test_threads_that_nobody_wakes_begin_when_they_did() -> None:
    t = Tiny()
    t.step(1, 0, 100)
    t.op("aten::mm", 10, 30)
    for start in range(12, 90, 10):
        t.op("read", start, start + 10, WORKER)
    graph = t.graph()
    assert float(schedule(graph).start_us[node_of(graph, "read")]) == 12


@pytest.mark.parametrize("thread", [1, WORKER])
def test_a_kernel_whose_launch_has_no_length_and_no_piece_before_it_keeps_its_time(
    thread: int,
) -> None:
    t = Tiny()
    t.launch(0, 0, kernel=(35, 60), thread=thread)
    t.op("aten::mm", 0, 20)
    t.op("aten::mm", 40, 50, thread)
    graph = t.graph()
    kernel = node_of(graph, GEMM)
    assert math.isfinite(schedule(graph).start_us[kernel])
    assert schedule(graph).start_us[kernel] == pytest.approx(35, abs=5)


def test_collective_kernels_are_collectives_and_copies_are_copies() -> None:
    t = Tiny()
    t.step(1, 0, 100)
    t.launch(0, 5, kernel=(10, 20), name="ncclDevKernel_AllReduce", stream=COMMS)
    t.copy(10, 15, copy=(20, 30), name="Memcpy HtoD (nccl)", stream=COPIES)
    t.launch(20, 25, (30, 35), call="cudaMemsetAsync", name="Memset", category="gpu_memset")
    graph = t.graph()
    kinds = {
        graph.labels[node]: NodeKind(graph.nodes_.kind[node]).name
        for node in np.flatnonzero(graph.on_device)
    }
    assert kinds == {
        "ncclDevKernel_AllReduce": "COLLECTIVE",
        "Memcpy HtoD (nccl)": "COPY",
        "Memset": "COPY",
    }
