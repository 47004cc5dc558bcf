"""The critical path, each counted by hand, and what holds for the path of every trace."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from timeline.graph.drawn import any_trace, quick
from timeline.handmade import busy, only_step
from tiny import AUTOGRAD, EVALUATE, NCCL, Tiny, told, trace_of

from perfmodel.prediction.breakdown.job import breakdown
from perfmodel.timeline.critical_path import critical_path
from perfmodel.timeline.graph import waits
from perfmodel.timeline.schedule import measured, schedule


def path_of(t: Tiny) -> list[tuple[str, float]]:
    return told(only_step(t).critical_path)


def test_a_host_bound_path_stays_on_the_host() -> None:
    t = Tiny()
    t.step(1, 0, 100)
    t.op("aten::mm", 10, 40)
    t.launch(20, 25, kernel=(30, 60))
    assert path_of(t) == [
        ("host_t1", 10),
        ("host_t2", 10),
        ("host_t4", 5),
        ("host_t3", 15),
        ("host_t1", 60),
    ]


def test_a_device_bound_path_goes_through_the_kernels() -> None:
    t = Tiny()
    t.step(1, 0, 200)
    t.op("aten::mm", 10, 60)
    t.launch(20, 25, kernel=(30, 100))
    t.launch(40, 45, kernel=(102, 150), name=NCCL)
    t.call("cudaDeviceSynchronize", 70, 160)
    assert path_of(t) == [
        ("host_t1", 10),
        ("host_t2", 10),
        ("host_t4", 5),
        ("launch_latency", 5),
        ("compute", 70),
        ("launch_latency", 2),
        ("communication", 48),
        ("blocking_call", 10),
        ("host_t1", 40),
    ]


def test_a_path_through_the_autograd_thread() -> None:
    t = Tiny()
    t.step(1, 0, 150)
    t.op("aten::forward", 0, 20)
    t.op(EVALUATE + "A", 26, 90, AUTOGRAD)
    t.op("aten::after", 100, 150)
    assert path_of(t) == [
        ("host_op_without_launch", 20),
        ("host_t1", 6),
        ("host_op_without_launch", 64),
        ("host_t1", 10),
        ("host_op_without_launch", 50),
    ]
    path = only_step(t).critical_path
    names = [t.graph().labels[piece.node] for piece in path]
    assert EVALUATE + "A" in names


def test_a_path_through_a_full_launch_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "QUEUE_DEPTHS", range(5, 12))
    t = Tiny()
    now, ends = 0.0, [-1.0]
    for i in range(120):
        returned = max(now + 5, ends[i - 7] + 8 if i >= 8 else 0)
        start = max(now + 10, ends[-1] + 1)
        ends.append(start + (100 if i % 4 == 3 else 10))
        t.launch(now, returned, kernel=(start, ends[-1]))
        now = returned + 5
    t.step(1, 0, now)
    found = critical_path(measured(t.graph()), 0).by_cause()
    assert sum(found.values()) == pytest.approx(now)
    assert found["compute"] > 0.7 * now
    assert found["launch_queue_full"] > 0


def test_a_path_to_the_rank_that_came_last() -> None:
    ranks = []
    for number, arrives in (0, 100), (1, 300):
        t = Tiny(number, 2)
        t.step(1, 0, 450)
        t.op("aten::mm", 5, 50)
        t.launch(10, 15, kernel=(20, arrives), name=f"kernel of {number}")
        t.launch(20, 25, (arrives + 1, 400), NCCL)
        t.call("cudaStreamSynchronize", 60, 410)
        ranks.append(t)
    found = breakdown(trace_of(*ranks))
    labels = found.timeline.graph.labels
    for rank in found.ranks:
        path = rank.steps[0].critical_path
        assert "kernel of 1" in {labels[piece.node] for piece in path}
        assert path.by_cause()["communication"] == 99
        # The device is taken from the arrival on, waiting included.
        arrived = 101 if rank.rank == 0 else 301
        assert rank.steps[0].accounting.comm_us == 400 - arrived


def test_a_transfer_that_begins_after_the_last_arrival_is_waiting() -> None:
    ranks = []
    for number, late_us in (0, 0), (1, 21):
        t = Tiny(number, 2)
        for step in range(3):
            at = 1000 * step
            ends = at + 400 + (late_us if step == 1 else 0)
            t.step(step, at, at + 450)
            t.op("aten::mm", at + 5, at + 50)
            t.launch(at + 10, at + 15, (at + 301, ends), NCCL)
            t.call("cudaStreamSynchronize", at + 60, ends + 10)
        ranks.append(t)
    steps = breakdown(trace_of(*ranks)).ranks[1].steps
    found = [step.critical_path.by_cause() for step in steps]
    assert [path["communication"] for path in found] == [99, 99, 99]
    assert [path.get("collective_wait", 0) for path in found] == [0, 21, 0]


def test_pieces_of_a_path_leave_no_hole() -> None:
    path = only_step(busy()).critical_path
    assert path[0].start_us == 0
    assert path[-1].end_us == 100
    for before, after in itertools.pairwise(path):
        assert before.end_us == after.start_us
    assert path[1:3][0] == path[1]
    assert sum(path.by_cause().values()) == pytest.approx(100)


@quick
@given(any_trace())
def test_pieces_follow_one_another_back_to_the_start_of_the_step(t: Tiny) -> None:
    graph = t.graph()
    for timeline in measured(graph), schedule(graph):
        for mark in range(len(graph.marks.name)):
            path = critical_path(timeline, mark)
            begun, over = (
                float(timeline.end_us[ends[mark]]) for ends in (graph.marks.start, graph.marks.end)
            )
            if over <= begun:
                continue
            assert (path[0].start_us, path[-1].end_us) == (begun, over)
            assert all(piece.end_us >= piece.start_us for piece in path)
            ends = [piece.end_us for piece in path[:-1]]
            assert ends == [piece.start_us for piece in path[1:]]
