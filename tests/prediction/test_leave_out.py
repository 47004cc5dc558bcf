"""Leaving a step out: its host costs from the other steps, by hand."""

from __future__ import annotations

import numpy as np
import pytest
from tiny import WORKER, Tiny, graph_of

from perfmodel.prediction.result import left_out_change_us
from perfmodel.timeline.graph.types import ExecutionGraph
from perfmodel.timeline.schedule import schedule


def step(
    t: Tiny, number: int, at: float, gap: float, op: float, kernel: float | None = None
) -> float:
    """One step: a gap, an operator, and perhaps a kernel that the host waits for; its end."""
    begun = at
    at += gap
    t.op("aten::mm", at, at + op)
    if kernel is not None:
        t.launch(at + 1, at + 2, kernel=(at + 3, at + 3 + kernel))
    at += op
    if kernel is not None:
        end = at - op + 3 + kernel
        t.call("cudaDeviceSynchronize", at, end + 10)
        at = end + 10
    t.step(number, begun, at)
    return at


def steps(*costs: tuple[float, ...], rank: int | None = None) -> Tiny:
    t = Tiny(rank, 2)
    at = 0.0
    for number, cost in enumerate(costs):
        at = step(t, number, at, *cost)
    return t


def left_out(graph: ExecutionGraph, steady: list[int]) -> list[float]:
    change_us = left_out_change_us(graph, graph.nodes_.duration_us, np.array(steady))
    found: list[float] = (schedule(graph).step_us + change_us.reshape(-1)).tolist()
    return found


def test_each_step_has_the_mean_of_the_others() -> None:
    graph = steps((10, 100), (20, 200), (60, 300)).graph()
    assert left_out(graph, [0, 1, 2]) == [
        (20 + 60) / 2 + (200 + 300) / 2,
        (10 + 60) / 2 + (100 + 300) / 2,
        (10 + 20) / 2 + (100 + 200) / 2,
    ]


def test_warmup_does_not_teach_but_is_predicted() -> None:
    graph = steps((10, 1000), (20, 200), (60, 300)).graph()
    assert left_out(graph, [1, 2]) == [(20 + 60) / 2 + 250, 60 + 300, 20 + 200]


def test_a_step_with_none_to_learn_from_is_not_a_number() -> None:
    graph = steps((10, 100), (20, 200)).graph()
    assert np.isnan(left_out(graph, [0])).tolist() == [True, False]
    assert np.isnan(left_out(steps((10, 100)).graph(), [0])).tolist() == [True]


def test_device_time_stays_the_steps_own() -> None:
    # A kernel of 500 us in the one step, of 100 us in the other; the host costs are the same.
    graph = steps((10, 20, 500), (10, 20, 100)).graph()
    found = left_out(graph, [0, 1])
    assert found == pytest.approx([10 + 3 + 500 + 10, 10 + 3 + 100 + 10])


def test_an_operator_of_one_step_only_learns_from_its_kind() -> None:
    t = Tiny()
    t.step(0, 0, 100)
    t.op("aten::mm", 0, 40)
    t.op("aten::add", 40, 100)
    t.step(1, 100, 200)
    t.op("aten::mm", 100, 130)
    t.op("aten::mm", 130, 150)
    t.op("aten::conv", 150, 200)  # no such operator in the other step: the mean of all there
    found = left_out(t.graph(), [0, 1])
    assert found[1] == 40 + 40 + 50
    # The first mm learns from the first mm; add from all of step 1.
    assert found[0] == pytest.approx(30 + (30 + 20 + 50) / 3)


def test_the_nth_piece_of_an_operator_learns_from_the_nth() -> None:
    t = Tiny()
    for number, (first, second) in enumerate([(10, 90), (20, 80)]):
        at = 100 * number
        t.step(number, at, at + 100)
        t.op("aten::mm", at, at + first)
        t.op("aten::mm", at + first, at + 100)
        assert first + second == 100
    graph = t.graph()
    assert left_out(graph, [0, 1]) == [100, 100]


def test_threads_learn_from_their_own() -> None:
    t = Tiny()
    for number in range(2):
        at = 100 * number
        t.step(number, at, at + 100)
        t.op("aten::mm", at, at + 100)
        t.op("aten::mm", at + 1, at + 3, WORKER)
    assert left_out(t.graph(), [0, 1]) == [100, 100]


def test_ranks_learn_from_their_own_steps() -> None:
    graph = graph_of(steps((10, 100), (20, 200), rank=0), steps((30, 300), (40, 400), rank=1))
    assert left_out(graph, [0, 1]) == [220, 110, 440, 330]
