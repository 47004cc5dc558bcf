"""What runs beside a collective takes longer: answers that a hand can check."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.base.arrays import Floats
from perfmodel.prediction.contention import MAX_LOST_FRAC, Load, contended_schedule, lost_us
from perfmodel.timeline.graph.kinds import Cause, EdgeKind, NodeKind, Scope
from perfmodel.timeline.graph.types import Edges, ExecutionGraph, Nodes, StepMarks
from perfmodel.timeline.schedule import Timeline, schedule

KERNEL, COLLECTIVE = 0, 1


def _beside(
    kernel_us: float = 100.0, collective_us: float = 100.0, second_us: float = 0.0
) -> ExecutionGraph:
    """A kernel and a collective that start together, and a second collective on a third stream."""
    kinds = (
        NodeKind.KERNEL,
        NodeKind.COLLECTIVE,
        NodeKind.COLLECTIVE,
        NodeKind.MARK,
        NodeKind.MARK,
    )
    duration = np.array([kernel_us, collective_us, second_us, 0.0, 0.0])
    count = len(kinds)
    nodes = Nodes(
        kind=np.array(kinds, np.int64),
        cause=np.full(count, Cause.COMPUTE, np.int64),
        scope=np.full(count, Scope.COMPUTE, np.int64),
        rank=np.zeros(count, np.int64),
        resource=np.array([0, 1, 2, 3, 3]),
        row=np.full(count, -1),
        start_us=np.array([0.0, 0.0, 0.0, -1.0, 1e9]),
        duration_us=duration,
        release_us=np.zeros(count),
    )
    source, target = np.array([0, 1, 2]), np.array([4, 4, 4])
    edges = Edges(
        source, target, np.full(3, EdgeKind.HOST_SYNC, np.int64), np.zeros(3), np.zeros(3)
    )
    marks = StepMarks(np.zeros(1, np.int64), ("step",), np.array([3]), np.array([4]))
    names = ("0/gpu0/7", "0/gpu0/20", "0/gpu0/21", "0/main")
    return ExecutionGraph(nodes, edges, marks, names, ("",) * count, ("",) * count)


def _load(**shares: tuple[float, ...]) -> Load:
    """Shares of the kernel and of the two collectives, in that order; 0 where not said."""
    names = Load.__dataclass_fields__
    return Load(**{name: np.array([*shares.get(name, (0,) * 3), 0.0, 0.0]) for name in names})


def _settled(graph: ExecutionGraph, load: Load) -> tuple[Timeline, Floats]:
    def run(duration_us: Floats) -> tuple[Timeline, Floats]:
        timeline = schedule(graph, duration_us)
        return timeline, lost_us(timeline, load)

    return contended_schedule(run, graph.nodes_.duration_us)


def test_a_kernel_of_compute_works_with_the_multiprocessors_that_are_left() -> None:
    graph = _beside(kernel_us=90, collective_us=1000)
    load = _load(sm_used_frac=(1, 0, 0), sm_taken_frac=(0, 0.1, 0))
    _, taken = _settled(graph, load)
    assert taken[KERNEL] == pytest.approx(100, rel=1e-3)
    assert taken[COLLECTIVE] == 1000


def test_one_that_leaves_multiprocessors_idle_loses_nothing() -> None:
    load = _load(sm_used_frac=(0.9, 0, 0), sm_taken_frac=(0, 0.1, 0))
    _, taken = _settled(_beside(), load)
    assert taken[KERNEL] == 100


def test_what_outlasts_the_collective_loses_only_beside_it() -> None:
    """Half as fast for 100 us, which are 50 of work; the other 250 alone."""
    load = _load(sm_used_frac=(1, 0, 0), sm_taken_frac=(0, 0.5, 0))
    _, taken = _settled(_beside(kernel_us=300), load)
    assert taken[KERNEL] == pytest.approx(350, rel=2e-3)


def test_where_memory_saturates_the_collective_keeps_its_share_of_multiprocessors() -> None:
    """It asks for 0.3 of the bandwidth and is left with 0.1: three times as long, while the kernel
    runs; the kernel takes 1.3 times as long."""
    graph = _beside(kernel_us=1000, collective_us=100)
    load = _load(hbm_used_frac=(1, 0, 0), sm_taken_frac=(0, 0.1, 0), hbm_taken_frac=(0, 0.3, 0))
    _, taken = _settled(graph, load)
    assert taken[COLLECTIVE] == pytest.approx(300, rel=0.02)
    assert taken[KERNEL] == pytest.approx(1000 + 300 * (1 - 1 / 1.3), rel=0.01)


def test_a_short_kernel_that_reads_waits_for_its_data() -> None:
    load = _load(sm_taken_frac=(0, 0.1, 0), delay_us=(0, 9, 0), reads=(1, 0, 0))
    _, taken = _settled(_beside(kernel_us=3), load)
    assert taken[KERNEL] == pytest.approx(12, rel=0.1)
    _, writes = _settled(_beside(kernel_us=3), replace(load, reads=np.zeros(5)))
    assert writes[KERNEL] == 3


def test_two_collectives_share_the_wires() -> None:
    """Each at half its rate until the shorter has gone: 200 us for 100 of its work."""
    graph = _beside(kernel_us=1, collective_us=300, second_us=100)
    load = _load(sm_taken_frac=(0, 0.1, 0.1), wire_used_frac=(0, 1, 1))
    timeline, taken = _settled(graph, load)
    assert taken[2] == pytest.approx(200, rel=0.02)
    assert taken[COLLECTIVE] == pytest.approx(400, rel=0.02)
    assert timeline.step_us[0] == pytest.approx(taken[COLLECTIVE])


def test_two_that_mostly_wait_for_hops_find_room_on_the_wires() -> None:
    """0.5 and 0.4 of the wires are less than there are; 0.75 and 0.75 are 1.5 times as many."""
    graph = _beside(kernel_us=1, collective_us=100, second_us=100)
    few, many = (
        _settled(graph, _load(sm_taken_frac=(0, 0.1, 0.1), wire_used_frac=wires))[1]
        for wires in ((0.0, 0.5, 0.4), (0.0, 0.75, 0.75))
    )
    assert few[1:3].tolist() == [100, 100]
    assert many[1:3] == pytest.approx([150, 150], rel=0.01)


def test_while_a_rank_waits_blocks_are_held_and_no_bytes_move() -> None:
    """The kernel runs beside the wait alone: it loses multiprocessors, not bandwidth."""
    graph = _beside(kernel_us=90, collective_us=0, second_us=50)
    edges = graph.edges_
    late = Edges(
        np.append(edges.source, 1),
        np.append(edges.target, 2),
        np.append(edges.kind, EdgeKind.RENDEZVOUS),
        np.append(edges.overlap_frac, 0.0),
        np.append(edges.lag_us, 500.0),
    )
    graph = replace(graph, edges_=late, arrivals=np.array([[2, 1]]))
    load = _load(
        sm_used_frac=(1, 0, 0),
        hbm_used_frac=(0.9, 0, 0),
        sm_taken_frac=(0, 0, 0.5),
        sm_held_frac=(0, 0, 0.1),
        hbm_taken_frac=(0, 0, 0.5),
    )
    _, taken = _settled(graph, load)
    assert taken[KERNEL] == pytest.approx(100, rel=1e-3)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.floats(0, 1), min_size=6, max_size=6),
    st.floats(1, 1000),
    st.floats(1, 1000),
)
def test_nothing_gets_faster_and_all_keep_a_tenth_of_their_pace(
    shares: list[float], kernel_us: float, collective_us: float
) -> None:
    graph = _beside(kernel_us, collective_us)
    load = _load(
        sm_used_frac=(shares[0], 0, 0),
        hbm_used_frac=(shares[1], 0, 0),
        sm_taken_frac=(0, shares[2], 0),
        hbm_taken_frac=(0, shares[3], 0),
        delay_us=(0, 20 * shares[4], 0),
        reads=(float(shares[5] > 0.5), 0, 0),
    )
    timeline, taken = _settled(graph, load)
    alone = graph.nodes_.duration_us
    assert (taken >= alone).all()
    assert (taken <= alone / (1 - MAX_LOST_FRAC) + 1e-6).all()
    np.testing.assert_array_equal(timeline.end_us - timeline.start_us, taken)
    _, same = _settled(graph, load)
    np.testing.assert_array_equal(taken, same)
    every = lost_us(timeline, load)
    for node in (KERNEL, COLLECTIVE):
        asked = lost_us(timeline, load, slice(node, node + 1))
        assert asked[node] == every[node]
        assert not np.delete(asked, node).any()
