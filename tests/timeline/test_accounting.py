"""Accounting: how long the device was active, and with what, each counted by hand."""

from __future__ import annotations

from timeline.handmade import busy, only_step
from tiny import Tiny, told

from perfmodel.prediction.breakdown.job import breakdown


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
