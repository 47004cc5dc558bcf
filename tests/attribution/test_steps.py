"""Which steps are warm-up, and how figures per step and rank are laid out."""

from __future__ import annotations

import pytest
from tiny import Tiny, graph_of, trace_of

from perfmodel.attribution.steps import by_rank, ranks_of, steady_steps, warmup_steps
from perfmodel.graph import build_graph
from perfmodel.timeline.schedule import measured


def steps(*step_us: float, malloc_us: tuple[float, ...] = (), rank: int | None = None) -> Tiny:
    """Steps of these durations, the n-th with so much time in the allocator."""
    t = Tiny(rank, 2)
    at = 0.0
    for number, us in enumerate(step_us):
        t.step(number, at, at + us)
        t.op("aten::mm", at, at + us)
        if number < len(malloc_us) and malloc_us[number]:
            t.call("cudaMalloc", at + 1, at + 1 + malloc_us[number])
        at += us
    return t


def warmup(*ranks: Tiny) -> list[bool]:
    found: list[bool] = warmup_steps(measured(build_graph(trace_of(*ranks)))).tolist()
    return found


def test_a_step_above_one_and_a_half_times_the_median_is_warmup() -> None:
    assert warmup(steps(160, 100, 100)) == [True, False, False]
    assert warmup(steps(150, 100, 100)) == [False, False, False]
    assert warmup(steps(100, 100, 100, 30)) == [False] * 4


def test_one_step_and_two_equal_steps_are_steady() -> None:
    assert warmup(steps(100)) == [False]
    assert warmup(steps(100, 100)) == [False, False]


def test_a_step_with_a_third_of_its_time_in_the_allocator_is_warmup() -> None:
    assert warmup(steps(100, 100, 100, malloc_us=(34,))) == [True, False, False]
    assert warmup(steps(100, 100, 100, malloc_us=(33,))) == [False, False, False]


def test_warmup_is_decided_for_all_ranks_together() -> None:
    # In the mean of both: 175, 100 and 100 us.
    assert warmup(steps(250, 100, 100, rank=0), steps(100, 100, 100, rank=1)) == [
        True,
        False,
        False,
    ]
    assert warmup(steps(180, 100, 100, rank=0), steps(100, 100, 100, rank=1)) == [False] * 3


def test_where_every_step_is_warmup_all_of_them_count() -> None:
    timeline = measured(steps(100, 100, malloc_us=(50, 50)).graph())
    assert warmup_steps(timeline).all()
    assert steady_steps(timeline).tolist() == [0, 1]


def test_figures_by_rank_and_step() -> None:
    graph = graph_of(steps(10, 20, rank=0), steps(30, 40, rank=1))
    assert ranks_of(graph) == [0, 1]
    assert by_rank(graph, measured(graph).step_us).tolist() == [[10, 20], [30, 40]]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_steady_steps_of_equal_ones_are_all(count: int) -> None:
    assert steady_steps(measured(steps(*[100] * count).graph())).tolist() == list(range(count))
