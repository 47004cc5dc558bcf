"""Copies that their calls wait for."""

from __future__ import annotations

import pytest
from timeline.graph.handmade import assert_replays, halved, span
from tiny import COPIES, GEMM, Tiny, edges_of, lags_of, nodes_named

from perfmodel.timeline.graph.kinds import EdgeKind, NodeKind
from perfmodel.timeline.schedule import schedule


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
