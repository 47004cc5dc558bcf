"""Which steps are warm-up, outliers or steady, and how figures per step and rank are laid out."""

from __future__ import annotations

import pytest
from tiny import Tiny, graph_of, trace_of

from perfmodel.timeline.graph import build_graph
from perfmodel.timeline.schedule import (
    by_rank_and_step,
    measured,
    ranks_of,
    steady_steps,
    step_roles,
)


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


def roles(*ranks: Tiny) -> str:
    """A letter per step: warm-up, outlier or steady."""
    return "".join(role.value[0] for role in step_roles(measured(build_graph(trace_of(*ranks)))))


def test_slow_steps_at_the_beginning_are_warm_up() -> None:
    assert roles(steps(160, 100, 100)) == "wss"
    assert roles(steps(150, 100, 100)) == "sss"
    assert roles(steps(1000, 400, 100, 100, 100)) == "wwsss"
    assert roles(steps(100, 100, 100, 30)) == "ssss"


def test_slow_steps_anywhere_else_are_outliers() -> None:
    assert roles(steps(100, 160, 100)) == "sos"
    assert roles(steps(100, 100, 160)) == "sso"
    assert roles(steps(160, 100, 100, 300, 100)) == "wssos"
    assert roles(steps(100, 150, 100)) == "sss"


def test_what_scatters_has_no_outlier() -> None:
    # Median 115, and half of the deviations are below 28: 166 is 1.8 such deviations above.
    assert roles(steps(100, 122, 166, 82, 107, 200)) == "ssssss"
    # Median 102, deviation 2: 200 is far outside.
    assert roles(steps(100, 102, 104, 102, 107, 200)) == "ssssso"
    # Slow beside the median of those after it (107), not beside their scatter of 52 each way.
    assert roles(steps(166, 82, 107, 166)) == "ssss"


def test_one_step_and_two_steps() -> None:
    assert roles(steps(100)) == "s"
    assert roles(steps(100, 100)) == "ss"
    assert roles(steps(160, 100)) == "ws"
    assert roles(steps(100, 900)) == "ss"  # which of them is the usual one, nothing tells


def test_roles_are_decided_for_all_ranks_together() -> None:
    # In the mean of both: 175, 100 and 100 us.
    assert roles(steps(250, 100, 100, rank=0), steps(100, 100, 100, rank=1)) == "wss"
    assert roles(steps(180, 100, 100, rank=0), steps(100, 100, 100, rank=1)) == "sss"


def test_medians_are_of_steady_steps() -> None:
    assert steady_steps(measured(steps(160, 100, 100, 300, 100).graph())).tolist() == [1, 2, 4]


def test_figures_by_rank_and_step() -> None:
    graph = graph_of(steps(10, 20, rank=0), steps(30, 40, rank=1))
    assert ranks_of(graph) == [0, 1]
    assert by_rank_and_step(graph, measured(graph).step_us).tolist() == [[10, 20], [30, 40]]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_steady_steps_of_equal_ones_are_all(count: int) -> None:
    assert steady_steps(measured(steps(*[100] * count).graph())).tolist() == list(range(count))


def working(*launches: int, step_us: tuple[float, ...] = ()) -> Tiny:
    """Steps that launch so many kernels of 1 us within one operator, 100 us long each."""
    t = Tiny()
    at = 0.0
    for number, count in enumerate(launches):
        us = step_us[number] if step_us else 100.0
        t.step(number, at, at + us)
        if count:
            t.op("aten::mm", at + 1, at + us - 1)
        for n in range(count):
            t.launch(at + 2 + 4 * n, at + 4 + 4 * n, (at + 5 + 4 * n, at + 6 + 4 * n))
        at += us
    return t


def test_a_step_that_launched_less_than_half_is_incomplete_whatever_its_length() -> None:
    assert roles(working(4, 4, 2, 1)) == "sssi"
    assert roles(working(4, 0, step_us=(9300, 49))) == "si"  # the second is not the usual one
    assert roles(working(0, 0, 4, 4, 4)) == "iisss"  # lost
    assert roles(working(4, 4, 4, 0, step_us=(160, 100, 100, 900))) == "wssi"


def test_one_step_with_work_is_steady() -> None:
    assert roles(working(1, 0, 0)) == "sii"
    assert roles(steps(100, malloc_us=(50,))) == "s"


def test_a_step_without_operators_is_incomplete_where_others_have_some() -> None:
    t = steps(100, 100)
    t.step(2, 200, 220)
    assert roles(t) == "ssi"
    bare = Tiny()
    bare.step(0, 0, 100)
    bare.step(1, 100, 200)
    assert roles(bare) == "ss"


def test_what_ranks_launch_counts_together() -> None:
    assert roles(working(4, 4, 2), working(4, 4, 1)) == "ssi"
