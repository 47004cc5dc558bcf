"""Where the time went: accounting, idle causes and the critical path, each counted by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from graph.drawn import any_trace, quick
from hypothesis import given
from tiny import (
    AUTOGRAD,
    COMMS,
    COPIES,
    EVALUATE,
    GEMM,
    NCCL,
    Tiny,
    nodes_named,
    told,
    trace_of,
)

from perfmodel.attribution.breakdown import Breakdown, StepBreakdown, breakdown
from perfmodel.attribution.path import critical_path
from perfmodel.graph import build_graph, waits
from perfmodel.graph.kinds import IDLE_CAUSES
from perfmodel.timeline.schedule import measured, schedule


def only_step(t: Tiny) -> StepBreakdown:
    (rank,) = breakdown(t.trace()).ranks
    (step,) = rank.steps
    return step


def idle_of(t: Tiny) -> dict[str, float]:
    step = only_step(t)
    assert sum(step.idle_by_cause.values()) == pytest.approx(step.accounting.gpu_idle_us, abs=1e-6)
    return {cause: round(us, 6) for cause, us in step.idle_by_cause.items()}


# Accounting


def busy() -> Tiny:
    t = Tiny()
    t.step(1, 0, 100)
    t.op("aten::mm", 0, 9)
    t.launch(1, 2, kernel=(10, 40))
    t.launch(2, 3, kernel=(30, 60), name=NCCL, stream=COMMS)
    t.copy(3, 4, copy=(55, 70), stream=COPIES)
    t.launch(4, 5, kernel=(90, 120))
    t.kernel(200, 210, name="after the step")
    return t


def test_accounting() -> None:
    found = only_step(busy()).accounting
    assert found.step_us == 100
    assert found.gpu_active_us == 60 + 10  # 10..70 and 90..100, where the step ends
    assert found.gpu_idle_us == 30
    assert found.compute_us == 30 + 10
    assert found.comm_us == 30
    assert found.memcpy_us == 15
    assert found.exposed_comm_us == 15  # 40..55
    assert found.overlapped_comm_us == 15
    assert found.kernel_sum_us == 30 + 30 + 15 + 10


def test_memsets_count_as_copies() -> None:
    t = Tiny()
    t.step(1, 0, 100)
    t.launch(0, 5, (10, 30), call="cudaMemsetAsync", name="Memset", category="gpu_memset")
    assert only_step(t).accounting.memcpy_us == 20


def test_a_process_without_a_device_has_no_device_time_and_no_idle_time() -> None:
    t = Tiny()
    t.step(1, 0, 100)
    t.op("aten::mm", 10, 90)
    step = only_step(t)
    assert step.accounting.gpu_active_us == step.accounting.gpu_idle_us == 0
    assert step.accounting.kernel_sum_us == 0
    assert step.idle_by_cause == {}
    assert told(step.critical_path) == [
        ("host_t1", 10),
        ("host_op_without_launch", 80),
        ("host_t1", 10),
    ]


def test_device_work_of_two_steps_is_split_where_the_second_begins() -> None:
    t = Tiny()
    t.step(1, 0, 100)
    t.step(2, 100, 200)
    t.op("aten::mm", 5, 20)
    t.launch(10, 15, kernel=(80, 130))
    t.op("aten::mm", 105, 120)
    (rank,) = breakdown(t.trace()).ranks
    assert [step.accounting.gpu_active_us for step in rank.steps] == [20, 30]
    assert [step.accounting.gpu_idle_us for step in rank.steps] == [80, 70]


# Idle causes, one after the other


def test_host_overheads_and_launch_latency() -> None:
    t = Tiny()
    t.step(1, 0, 200)
    t.op("aten::linear", 10, 60)
    t.launch(20, 25, kernel=(27, 30))
    t.launch(40, 45, kernel=(47, 50))
    t.op("aten::view", 70, 80)
    t.op("aten::mm", 90, 120)
    t.launch(100, 105, kernel=(107, 110))
    assert idle_of(t) == {
        "host_t1": 10 + 10 + 10,  # 0..10, 60..70, 80..90
        "host_t2": 10 + 10,  # 10..20, 90..100
        "host_t3": 10,  # 50..60: the device was busy until then
        "host_t4": 5 + 5 + 5,
        "host_t5": 10,  # 30..40
        "host_op_without_launch": 10,
        "launch_latency": 2 + 2 + 2,
        "end_of_step": 90,
    }


def test_a_blocking_call() -> None:
    t = Tiny()
    t.step(1, 0, 200)
    t.op("aten::mm", 10, 30)
    t.launch(15, 20, kernel=(25, 100))
    t.call("cudaDeviceSynchronize", 40, 108)
    t.op("aten::mm", 120, 150)
    t.launch(130, 135, kernel=(140, 190))
    found = idle_of(t)
    # The kernel ends at 100 and the host is back at 108.
    assert found["blocking_call"] == 8
    assert found["host_t1"] == 10 + 12
    assert sum(found.values()) == 25 + 40 + 10


def test_a_blocking_copy() -> None:
    t = Tiny()
    t.step(1, 0, 200)
    for start in 0, 4, 8:
        t.copy(start, start + 3, copy=(start + 5, start + 6))
    t.op("aten::item", 20, 80)
    t.copy(30, 70, copy=(40, 60), name="Memcpy DtoH (Device -> Pageable)")
    t.op("aten::mm", 90, 150)
    t.launch(100, 105, kernel=(110, 190))
    found = idle_of(t)
    assert found["blocking_call"] == pytest.approx(10)  # from 60 to 70


def test_a_hidden_synchronisation() -> None:
    t = Tiny()
    t.step(1, 0, 6000)
    t.op("aten::mm", 10, 30)
    t.launch(15, 20, kernel=(25, 5000))
    t.op("reducer", 40, 50)
    t.call("cudaEventElapsedTime", 5040, 5042)
    t.op("aten::mm", 5050, 5100)
    t.launch(5060, 5065, kernel=(5070, 5990))
    assert idle_of(t)["hidden_sync"] == 40


def test_the_allocator() -> None:
    t = Tiny()
    t.step(1, 0, 200)
    t.op("aten::mm", 0, 30)
    t.launch(15, 20, kernel=(25, 50))
    t.op("aten::empty", 40, 120)
    t.call("cudaMalloc", 60, 110)
    t.op("aten::mm", 120, 150)
    t.launch(130, 135, kernel=(140, 200))
    assert idle_of(t)["allocator"] == 50


def test_another_stream() -> None:
    t = Tiny()
    t.step(1, 0, 150)
    t.op("aten::a", 5, 60)
    t.launch(6, 10, kernel=(15, 100), name="producer")
    t.call("cudaStreamWaitEvent", 14, 15)
    t.launch(16, 20, kernel=(107, 150), name="consumer", stream=COMMS)
    assert idle_of(t)["other_stream"] == 7


def test_a_full_device() -> None:
    t = Tiny()
    t.step(1, 0, 400)
    t.op("aten::a", 5, 60)
    t.launch(6, 10, kernel=(15, 230), name="big")
    t.launch(16, 20, kernel=(232, 300), name="small", stream=COMMS)
    t.launch(30, 35, kernel=(310, 400), name="next", stream=COMMS)
    assert idle_of(t)["sm_occupancy"] == 2


def test_data_loading() -> None:
    t = Tiny()
    t.step(1, 0, 200)
    t.note("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 0, 100)
    t.op("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 0, 100)
    t.op("aten::mm", 100, 150)
    t.launch(110, 115, kernel=(120, 200))
    found = idle_of(t)
    assert found["data_loading"] == 100


def test_before_the_window_and_missing_records() -> None:
    t = Tiny()
    t.step(1, 0, 400)
    t.kernel(30, 50, "launched before the window")
    t.op("aten::mm", 60, 90)
    t.launch(70, 75, kernel=(80, 100))
    t.kernel(300, 320, "not recorded")
    found = idle_of(t)
    assert found["before_window"] == 30
    assert found["recording_missing"] == 200
    assert found["end_of_step"] == 80


def test_time_after_the_last_operation() -> None:
    t = Tiny()
    t.step(1, 0, 100)
    t.op("aten::mm", 0, 30)
    t.launch(0, 5, kernel=(5, 40))
    assert idle_of(t) == {"host_t4": 5, "end_of_step": 60}


def test_idle_time_at_the_end_of_a_step_has_the_cause_of_the_next_operation() -> None:
    t = Tiny()
    t.step(1, 0, 100)
    t.step(2, 100, 200)
    t.op("aten::mm", 0, 30)
    t.launch(0, 5, kernel=(5, 40))
    t.op("aten::view", 40, 130)
    t.op("aten::mm", 130, 190)
    t.launch(140, 145, kernel=(150, 200))
    (rank,) = breakdown(t.trace()).ranks
    assert rank.steps[0].idle_by_cause == {"host_t4": 5, "host_op_without_launch": 60}
    assert rank.steps[1].idle_by_cause == {
        "host_t2": 10,
        "host_t4": 5,
        "host_op_without_launch": 30,
        "launch_latency": 5,
    }


def late_kernel(other_ends: float | None = None) -> Tiny:
    """A kernel 500 us after its launch, which nothing recorded explains; four as usual."""
    t = Tiny()
    t.step(1, 0, 1500)
    for i in range(4):
        at = 100 * i
        t.op("aten::mm", at, at + 20)
        t.launch(at + 5, at + 10, kernel=(at + 15, at + 95))
    t.op("aten::mm", 400, 420)
    t.launch(405, 410, kernel=(910, 1500))
    if other_ends is not None:
        t.launch(412, 415, (420, other_ends), stream=COMMS, category="gpu_memcpy", name="Memcpy")
    return t


def test_a_start_that_nothing_explains_is_unexplained_and_the_lag_is_not() -> None:
    found = idle_of(late_kernel())
    assert found["unexplained"] == 500 - 5
    assert found["launch_latency"] == 4 * 5 + 5


def test_unexplained_idle_time_stays_so_however_little_of_it_was_idle() -> None:
    # A copy on another stream keeps the device busy until 60 us before the late kernel.
    found = idle_of(late_kernel(other_ends=850))
    assert found.get("unexplained") == 60


def test_the_cause_of_gaps_in_a_sampled_trace_is_the_recording() -> None:
    t = late_kernel()
    for number, event in enumerate(e for e in t.events if e["cat"] == "cpu_op"):
        event["args"]["External id"] = 1 + 10 * number
    found = idle_of(t)
    assert found["recording_missing"] == 495
    assert "unexplained" not in found


# The critical path


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
    found = only_step(t).critical_path.by_cause()
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


# What holds for every trace


def assert_sums(found: Breakdown) -> None:
    for rank in found.ranks:
        for step in rank.steps:
            account = step.accounting
            assert sum(step.critical_path_by_kind.values()) == pytest.approx(
                account.step_us, abs=1e-6
            )
            assert sum(step.idle_by_cause.values()) == pytest.approx(account.gpu_idle_us, abs=1e-6)
            assert set(step.idle_by_cause) <= {c.name.lower() for c in IDLE_CAUSES} | {
                "communication"
            }
            assert account.gpu_active_us + account.gpu_idle_us in (
                0,
                pytest.approx(account.step_us),
            )
            assert account.gpu_active_us <= account.kernel_sum_us + 1e-6
            parts = account.exposed_comm_us + account.overlapped_comm_us
            assert parts == pytest.approx(account.comm_us)
            walked = step.idle.by_cause()
            for cause in set(walked) | set(step.idle_by_cause):
                assert step.idle_by_cause.get(cause, 0) == pytest.approx(
                    walked.get(cause, 0), abs=1e-6
                ), cause


@quick
@given(any_trace())
def test_causes_sum_to_the_idle_time_and_paths_to_the_step(t: Tiny) -> None:
    assert_sums(breakdown(t.trace()))


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


# How it is written down


def test_as_a_dictionary_and_as_a_frame() -> None:
    found = breakdown(busy().trace())
    document = found.to_dict()
    assert document["schema"] == "perfmodel.breakdown/1"
    step = document["ranks"][0]["steps"][0]
    assert (step["name"], step["gpu_active_us"]) == ("ProfilerStep#1", 70)
    assert step["overheads"]["main"]["raw"]["T4"]["count"] == 4
    frame = found.to_frame()
    assert frame["rank"].tolist() == [0]
    assert frame.gpu_idle_us.tolist() == [30]
    assert frame.filter(like="idle_").drop(columns=["gpu_idle_us"], errors="ignore").sum(
        axis=1
    ).tolist() == pytest.approx([30])


def test_a_sampled_trace_is_warned_of() -> None:
    t = late_kernel()
    for number, event in enumerate(e for e in t.events if e["cat"] == "cpu_op"):
        event["args"]["External id"] = 1 + 10 * number
    assert any("sampled or filtered" in text for text in breakdown(t.trace()).warnings)


def test_two_ranks_have_their_own_devices() -> None:
    ranks = [busy(), busy()]
    found = breakdown(trace_of(*ranks))
    assert [rank.rank for rank in found.ranks] == [0, 1]
    assert [rank.steps[0].accounting.compute_us for rank in found.ranks] == [40, 40]
    graph = build_graph(trace_of(*ranks))
    assert len(nodes_named(graph, GEMM)) == 4
    assert np.unique(graph.nodes_.rank).tolist() == [0, 1]
