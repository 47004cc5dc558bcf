"""Lags are constants per kind: no start echoes its own residual."""

from __future__ import annotations

import numpy as np
import pytest
from tiny import GEMM, NCCL, Tiny, edges_of, lags_of, nodes_named

from perfmodel.timeline.graph.kinds import EdgeKind
from perfmodel.timeline.schedule import measured, schedule


def launches(*lags_us: float, name: str = GEMM, every_us: float = 100) -> Tiny:
    """One kernel of 10 us per 100 us, each this much after the end of its launch call."""
    t = Tiny()
    t.step(1, 0, every_us * len(lags_us))
    for i, lag_us in enumerate(lags_us):
        at = every_us * i
        t.op("aten::mm", at + 5, at + 30)
        t.launch(at + 10, at + 15, kernel=(at + 15 + lag_us, at + 25 + lag_us), name=name)
    return t


def test_the_lag_of_a_kind_is_the_median() -> None:
    graph = launches(4, 5, 5, 6, 60).graph()
    assert lags_of(graph, EdgeKind.LAUNCH) == [5]
    kernels = nodes_named(graph, GEMM)
    assert schedule(graph).start_us[kernels].tolist() == [20, 120, 220, 320, 420]
    assert measured(graph).start_us[kernels].tolist() == [19, 120, 220, 321, 475]


def test_an_outlier_does_not_change_what_the_others_do() -> None:
    kernels = [
        schedule(t.graph()).start_us[nodes_named(t.graph(), GEMM)[:4]].tolist()
        for t in (launches(5, 5, 5, 5, 5), launches(5, 5, 5, 5, 80))
    ]
    assert kernels[0] == kernels[1]


def test_a_start_that_no_edge_can_explain_teaches_no_lag() -> None:
    # 5000 us after its launch, all but one: the reason is not the launch.
    graph = launches(5, 5000, 5000, 5000, every_us=10_000).graph()
    assert lags_of(graph, EdgeKind.LAUNCH) == [5]


def test_kernels_that_seem_to_start_before_their_launch_are_allowed_to() -> None:
    graph = launches(-9, -8, -7).graph()
    assert lags_of(graph, EdgeKind.LAUNCH) == [-8]
    assert np.isfinite(schedule(graph).start_us).all()


def test_collectives_and_copies_have_lags_of_their_own() -> None:
    t = launches(5, 5, 5)
    for i in range(3):
        at = 100 * i
        t.launch(at + 50, at + 55, kernel=(at + 75, at + 80), name=NCCL, stream=20)
        t.copy(at + 60, at + 65, copy=(at + 67, at + 69), stream=21)
    graph = t.graph()
    kinds = EdgeKind.LAUNCH, EdgeKind.LAUNCH_COLLECTIVE, EdgeKind.LAUNCH_COPY
    assert [lags_of(graph, kind) for kind in kinds] == [[5], [20], [2]]


def test_a_kernel_behind_another_on_its_stream_says_nothing_of_the_launch() -> None:
    t = launches(5, 5)
    t.op("aten::mm", 205, 230)
    t.launch(206, 208, kernel=(213, 290))
    # Launched at 220, starts 2 us after the kernel before it: the stream decided.
    t.launch(215, 220, kernel=(292, 295))
    graph = t.graph()
    assert lags_of(graph, EdgeKind.LAUNCH) == [5]
    assert 2 in lags_of(graph, EdgeKind.STREAM)


def test_gaps_of_a_stream_keep_their_sum() -> None:
    t = Tiny()
    t.step(1, 0, 200)
    t.op("aten::a", 0, 60)
    starts = [70, 81, 92, 103, 119]  # gaps of 1, 1, 1 and 6 us
    for i, start in enumerate(starts):
        t.launch(2 + 3 * i, 4 + 3 * i, kernel=(start, start + 10))
    graph = t.graph()
    assert lags_of(graph, EdgeKind.STREAM) == [2.25]
    last = nodes_named(graph, GEMM)[-1]
    assert schedule(graph).start_us[last] == pytest.approx(119)


def test_program_order_has_no_lag() -> None:
    graph = launches(5, 5).graph()
    assert lags_of(graph, EdgeKind.PROGRAM) == [0]
    assert edges_of(graph, EdgeKind.PROGRAM) != []


def test_kernels_launched_before_the_window_start_when_they_did_or_behind_their_stream() -> None:
    t = Tiny()
    t.step(1, 0, 200)
    t.kernel(5, 20, "first")
    t.kernel(22, 40, "close behind")
    t.kernel(90, 95, "long after")
    t.op("aten::mm", 100, 130)
    t.launch(110, 115, kernel=(120, 125), name="launched")
    graph = t.graph()
    duration = graph.nodes_.duration_us.copy()
    duration[nodes_named(graph, "first")] = 5
    start = {
        name: float(schedule(graph, duration).start_us[nodes_named(graph, name)[0]])
        for name in ("first", "close behind", "long after", "launched")
    }
    assert start == {"first": 5, "close behind": 12, "long after": 90, "launched": 120}
