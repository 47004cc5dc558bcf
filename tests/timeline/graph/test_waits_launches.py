"""Launch calls that wait for a place in the queue, and those that outlast their kernel's start."""

from __future__ import annotations

import pytest
from timeline.graph.handmade import halved, span
from tiny import GEMM, Tiny, edges_of, lags_of, nodes_named

from perfmodel.timeline.graph import waits
from perfmodel.timeline.graph.kinds import Cause, EdgeKind
from perfmodel.timeline.schedule import measured, schedule


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


def test_a_call_that_goes_on_after_its_kernel_began_issues_first() -> None:
    t = Tiny()
    t.step(1, 0, 500)
    for start in 10, 40, 70:
        t.launch(start, start + 10, kernel=(start + 15, start + 20))
    t.launch(100, 200, kernel=(115, 300))
    t.call("cudaDeviceSynchronize", 210, 305)
    graph = t.graph()
    issue, rest = nodes_named(graph, "cudaLaunchKernel")[-2:]
    assert (span(graph, issue), span(graph, rest)) == ((100, 15), (115, 85))
    assert Cause(graph.nodes_.cause[rest]) == Cause.HOST_T4
    # A kernel cannot start before its call has issued it: with constants, lags stay plausible.
    assert 0 <= lags_of(graph, EdgeKind.LAUNCH)[0] <= 10
