"""Idle causes, one after the other: why the device had nothing to do, each counted by hand."""

from __future__ import annotations

import pytest
from timeline.handmade import late_kernel, only_step
from tiny import COMMS, Tiny

from perfmodel.prediction.breakdown.job import breakdown


def idle_of(t: Tiny) -> dict[str, float]:
    step = only_step(t)
    assert sum(step.idle_by_cause.values()) == pytest.approx(step.accounting.gpu_idle_us, abs=1e-6)
    return {cause: round(us, 6) for cause, us in step.idle_by_cause.items()}


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
