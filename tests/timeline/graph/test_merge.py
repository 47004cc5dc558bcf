"""Ranks that meet: transfers are the shortest, waiting follows, clocks are set by the meetings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tiny import COMMS, GEMM, NCCL, WORKER, Tiny, graph_of, nodes_named

from perfmodel.errors import TraceError
from perfmodel.timeline.graph.kinds import Cause, EdgeKind, NodeKind, Scope
from perfmodel.timeline.graph.merge import match_collectives
from perfmodel.timeline.graph.types import ExecutionGraph
from perfmodel.timeline.schedule import measured, schedule

A2A = "ncclDevKernel_SendRecv"


def worker(
    rank: int,
    arrives: float,
    ends: float,
    steps: int = 1,
    collective: str = NCCL,
    at: float = 0,
    clock_ns: int = 0,
) -> Tiny:
    """One rank: a kernel from 20 to `arrives`, then a collective to `ends`, awaited by the host.

    `at` is what the rank's clock shows at the start of the first step.
    """
    t = Tiny(rank, 2, where=f"rank{rank}.json", clock_ns=clock_ns)
    for step in range(steps):
        begun = at + 1000 * step
        t.step(step, begun, begun + ends + 50)
        t.op("aten::mm", begun + 5, begun + 50)
        t.launch(begun + 10, begun + 15, kernel=(begun + 20, begun + arrives))
        t.launch(begun + 20, begun + 25, (begun + arrives + 1, begun + ends), collective)
        t.call("cudaStreamSynchronize", begun + 60, begun + ends + 5)
    return t


def transfers(graph: ExecutionGraph, name: str = NCCL) -> list[float]:
    nodes = graph.nodes_
    rows = [n for n in nodes_named(graph, name) if nodes.scope[n] == Scope.COMM]
    return [float(nodes.duration_us[n]) for n in rows]


def with_duration(graph: ExecutionGraph, rank: int, label: str, add_us: float) -> list[float]:
    """The steps of all ranks when the nodes of a label on one rank take longer."""
    duration = graph.nodes_.duration_us.copy()
    for node in nodes_named(graph, label):
        if graph.nodes_.rank[node] == rank:
            duration[node] += add_us
    found: list[float] = schedule(graph, duration).step_us.tolist()
    return found


def pair() -> ExecutionGraph:
    """Rank 0 arrives at 101 and waits for rank 1, which arrives at 301; both end at 400."""
    return graph_of(worker(0, 100, 400), worker(1, 300, 400))


def test_the_transfer_is_the_shortest_of_the_ranks() -> None:
    graph = pair()
    assert transfers(graph) == [99, 99]
    assert schedule(graph).step_us == pytest.approx(measured(graph).step_us)
    assert schedule(graph).step_us.tolist() == [450, 450]


def test_the_waiting_follows_from_the_other_rank() -> None:
    graph = pair()
    assert with_duration(graph, 1, GEMM, 100) == [550, 550]
    assert with_duration(graph, 1, GEMM, -100) == [350, 350]
    # 180 us sooner than the other rank needs would not help it; 150 us more is still waiting.
    assert with_duration(graph, 0, GEMM, 150) == [450, 450]
    assert with_duration(graph, 0, GEMM, 250) == [500, 500]


def test_a_late_rank_makes_the_other_wait() -> None:
    both = graph_of(worker(0, 300, 400), worker(1, 300, 400))
    duration = both.nodes_.duration_us.copy()
    late = [n for n in nodes_named(both, GEMM) if both.nodes_.rank[n] == 1]
    duration[late] += 100
    timeline = schedule(both, duration)
    arrived, ended = (timeline.end_us[both.arrivals[:, i]].tolist() for i in (1, 0))
    assert (arrived, ended) == ([301, 401], [500, 500])


def test_a_faster_network_shortens_the_transfer_only() -> None:
    graph = pair()
    nodes = graph.nodes_
    duration = np.where(nodes.scope == Scope.COMM, nodes.duration_us * 0, nodes.duration_us)
    assert schedule(graph, duration).step_us.tolist() == [351, 351]


def test_the_time_from_arrival_to_the_end_is_device_time() -> None:
    graph = pair()
    first, last = graph.device_span(0)
    timeline = measured(graph)
    spans = zip(timeline.start_us[first].tolist(), timeline.end_us[last].tolist(), strict=True)
    assert sorted(spans) == [(20, 100), (101, 400)]


def test_waiting_is_of_no_scope_and_its_cause_is_the_other_rank() -> None:
    graph = pair()
    kinds = NodeKind.COLLECTIVE, NodeKind.MARK
    rows = [n for n in nodes_named(graph, NCCL) if graph.nodes_.scope[n] == Scope.NONE]
    assert {NodeKind(graph.nodes_.kind[n]) for n in rows} == set(kinds)
    marks = [n for n in rows if graph.nodes_.kind[n] == NodeKind.MARK]
    assert [Cause(graph.nodes_.cause[n]) for n in marks] == [Cause.COLLECTIVE_WAIT]
    assert (graph.edges_.kind == EdgeKind.RENDEZVOUS).sum() == 4


def test_clocks_of_different_origin_are_brought_together() -> None:
    second = 10**9
    graph = graph_of(worker(0, 100, 400), worker(1, 300, 400, clock_ns=second))
    # One second apart by their clocks, but their collectives end together.
    assert transfers(graph) == [99, 99]
    assert schedule(graph).step_us.tolist() == [450, 450]
    ends = measured(graph).end_us[graph.marks.end]
    assert ends[0] == pytest.approx(ends[1])


def test_clocks_that_agree_are_left_alone() -> None:
    ranks = [worker(0, 100, 400, steps=3), worker(1, 300, 400, steps=3)]
    graph = graph_of(*ranks)
    starts = measured(graph).end_us[graph.marks.start]
    assert starts.tolist() == [0, 1000, 2000] * 2


def test_one_collective_that_ends_late_does_not_shift_a_clock() -> None:
    ranks = [worker(0, 100, 400, steps=3), worker(1, 300, 400, steps=3)]
    for event in ranks[1].events:
        if event["name"] == NCCL and event["ts"] > 2000:
            event["dur"] += 30
    starts = measured(graph_of(*ranks)).end_us[graph_of(*ranks).marks.start]
    assert starts.tolist() == [0, 1000, 2000] * 2


def test_ranks_that_began_recording_at_different_collectives_meet_from_the_last() -> None:
    first, second = worker(0, 100, 400), worker(1, 300, 400)
    # Rank 1 caught the tail of an earlier collective, that rank 0 has not.
    second.kernel(1, 4, A2A, stream=COMMS)
    graph = graph_of(first, second)
    assert transfers(graph) == [99, 99]
    assert transfers(graph, A2A) == [3]


def test_a_rank_that_recorded_one_collective_longer_meets_at_the_same_ones() -> None:
    ranks = worker(0, 100, 400, steps=3), worker(1, 300, 400, steps=3)
    ranks[0].launch(3000, 3005, kernel=(3010, 3300), name=NCCL)
    graph = graph_of(*ranks)
    assert measured(graph).end_us[graph.marks.start].tolist() == [0, 1000, 2000] * 2
    assert transfers(graph)[:6] == [99] * 6


def test_ranks_of_different_groups_do_not_meet() -> None:
    ranks = [worker(rank, 100, 400) for rank in range(4)]
    for rank, t in enumerate(ranks):
        for event in t.events:
            if event["name"] == NCCL:
                group = {"Process Group Name": f"tp{rank // 2}", "Group size": 2}
                event["args"] |= {"Collective name": "allreduce"} | group
    assert with_duration(graph_of(*ranks), 3, GEMM, 100) == [450, 450, 550, 550]


def test_collectives_that_never_meet_are_an_error_that_names_both() -> None:
    ranks = worker(0, 100, 400), worker(1, 300, 400, collective=A2A)
    with pytest.raises(
        TraceError, match=rf"rank1\.json: comes to '{A2A}' where rank0\.json comes to '{NCCL}'"
    ):
        graph_of(*ranks)


def test_different_numbers_of_steps_are_an_error_that_names_both() -> None:
    with pytest.raises(TraceError, match=r"rank1\.json: has 3 steps, but rank0\.json has 2"):
        graph_of(worker(0, 100, 400, steps=2), worker(1, 300, 400, steps=3))


def test_ranks_without_collectives_stand_side_by_side() -> None:
    ranks = [Tiny(0, 2), Tiny(1, 2)]
    for rank, t in enumerate(ranks):
        t.step(1, 0, 100 + rank)
        t.op("aten::mm", 10, 20)
    graph = graph_of(*ranks)
    assert graph.arrivals is None
    assert measured(graph).step_us.tolist() == [100, 101]
    assert schedule(graph).step_us.tolist() == [100, 101]
    assert graph.resources == ("0/main", "1/main")


def test_four_ranks_meet_at_once() -> None:
    graph = graph_of(*(worker(rank, 100 + 50 * rank, 400) for rank in range(4)))
    assert transfers(graph) == [149] * 4
    assert with_duration(graph, 2, GEMM, 100) == [450 + 50] * 4


def gloo_worker(rank: int, issued: float, ends: float) -> Tiny:
    t = Tiny(rank, 2)
    t.step(1, 0, ends + 50)
    t.op("aten::mm", 5, issued - 5)
    t.op("c10d::allreduce_", issued - 5, issued)
    t.op("record", issued, issued + 4)
    t.note("wait()", issued + 5, ends + 10)
    t.note("gloo:all_reduce", issued + 2, ends, WORKER)
    return t


def test_host_collectives_meet_too() -> None:
    graph = graph_of(gloo_worker(0, 100, 400), gloo_worker(1, 300, 400))
    assert schedule(graph).step_us.tolist() == [450, 450]
    assert with_duration(graph, 1, "c10d::allreduce_", 100) == [550, 550]
    assert with_duration(graph, 0, "c10d::allreduce_", 100) == [450, 450]
    assert not graph.on_device.any()


def test_recordings_that_overlap_the_first_but_not_each_other_meet_nowhere() -> None:
    ranks = (
        worker(0, 100, 400, steps=10),
        worker(1, 300, 400, steps=10),
        worker(2, 50, 400, steps=10),
    )
    graphs = [t.graph() for t in ranks]
    shift = np.array([0.0, 0.0, 0.0])
    found = match_collectives(
        [graphs[0], _only(graphs[1], slice(0, 5)), _only(graphs[2], slice(5, 10))],
        shift,
        ["a", "b", "c"],
    )
    assert found == []


def _only(graph: ExecutionGraph, kept: slice) -> ExecutionGraph:
    """The graph with some of its collectives: the others pass for kernels."""
    kind = graph.nodes_.kind.copy()
    collectives = np.flatnonzero(kind == NodeKind.COLLECTIVE)
    others = np.setdiff1d(collectives, collectives[kept])
    kind[others] = NodeKind.KERNEL
    return replace(graph, nodes_=replace(graph.nodes_, kind=kind))
