"""Collectives on host threads (Gloo): who issued them, and who waits for them."""

from __future__ import annotations

import pytest
from timeline.graph.handmade import assert_replays, halved, node_of, span
from tiny import AUTOGRAD, WORKER, Tiny, edges_of, lags_of, nodes_named

from perfmodel.timeline.graph.kinds import EdgeKind, NodeKind
from perfmodel.timeline.schedule import schedule


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
