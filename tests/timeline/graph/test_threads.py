"""The main thread and the threads that it wakes and waits for: autograd and others."""

from __future__ import annotations

import numpy as np
import pytest
from timeline.graph.handmade import assert_replays, halved, node_of, span
from tiny import AUTOGRAD, EVALUATE, WORKER, Tiny, edges_of, nodes_named

from perfmodel.timeline.graph.kinds import EdgeKind
from perfmodel.timeline.graph.types import ExecutionGraph
from perfmodel.timeline.schedule import schedule

A, B = EVALUATE + "A", EVALUATE + "B"


def backward(last_end: float = 90) -> Tiny:
    """The main thread sleeps from 20 to 100 while the autograd thread works from 26 to 90."""
    t = Tiny()
    t.step(1, 0, 150)
    t.op("aten::forward", 0, 20)
    t.op(EVALUATE + "A", 26, 50, AUTOGRAD)
    t.op(EVALUATE + "B", 55, last_end, AUTOGRAD)
    t.op("aten::after", 100, 110)
    return t


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
