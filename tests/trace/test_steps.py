"""Which intervals are steps, and which thread is which."""

from __future__ import annotations

import numpy as np
import pytest
from tiny import AUTOGRAD, EVALUATE, MAIN, WORKER, Tiny

from perfmodel.trace.link import thread_roles
from perfmodel.trace.window import find_steps


def steps_of(t: Tiny) -> list[tuple[str, float, float]]:
    steps = find_steps(t.rank_trace())
    return list(zip(steps.names, steps.start_us.tolist(), steps.end_us.tolist(), strict=True))


@pytest.mark.parametrize("category", ["user_annotation", "cpu_op", "Operator"])
def test_steps_are_the_host_intervals_of_that_name_whatever_their_category(category: str) -> None:
    t = Tiny()
    t.step(8, 100, 200, category)
    t.step(7, 0, 90, category)
    t.op("aten::mm", 10, 20)
    assert steps_of(t) == [("ProfilerStep#7", 0, 90), ("ProfilerStep#8", 100, 200)]
    assert not find_steps(t.rank_trace()).is_window


def test_the_step_drawn_on_the_device_is_not_a_step() -> None:
    t = Tiny()
    t.step(7, 0, 90)
    t.kernel(20, 130, name="ProfilerStep#7", category="gpu_user_annotation")
    assert steps_of(t) == [("ProfilerStep#7", 0, 90)]


def test_without_steps_the_step_is_the_window_from_first_to_last_event() -> None:
    t = Tiny()
    t.op("aten::mm", 10, 20)
    t.launch(12, 15, kernel=(50, 75))
    t.event("python_function", "<module>", (5, 40), MAIN)
    t.event("overhead", "Unrecognized", (0, 500), MAIN)
    # Times are relative to the first event, even of a category that counts for nothing.
    assert steps_of(t) == [("window", 5, 75)]
    assert find_steps(t.rank_trace()).is_window


def test_no_events_no_steps() -> None:
    assert steps_of(Tiny()) == []


def test_a_time_belongs_to_the_last_step_begun() -> None:
    t = Tiny()
    t.op("before", 0, 5)
    t.step(1, 10, 20)
    t.step(2, 30, 40)
    steps = find_steps(t.rank_trace())
    times = np.array([0, 10, 20, 25, 30, 99], float)
    assert steps.of_time(times).tolist() == [-1, 0, 0, 0, 1, 1]


def test_roles() -> None:
    t = Tiny()
    t.op("dataloader", 0, 500, WORKER)
    t.step(1, 10, 100)
    t.op("aten::mm", 20, 30)
    t.op(EVALUATE + "AddmmBackward0", 40, 90, AUTOGRAD)
    t.call("cudaGetDevice", 95, 96, 44)
    assert thread_roles(t.rank_trace()) == {
        MAIN: "main",
        AUTOGRAD: "autograd",
        WORKER: "other:0",
        44: "other:1",
    }


def test_without_steps_the_main_thread_is_the_one_with_most_operator_time() -> None:
    t = Tiny()
    t.call("cudaDeviceSynchronize", 0, 5000, WORKER)
    t.op("aten::mm", 20, 30)
    t.op("aten::mm", 20, 45, AUTOGRAD)
    assert thread_roles(t.rank_trace())[AUTOGRAD] == "main"


def test_backward_on_the_calling_thread_leaves_it_main() -> None:
    t = Tiny()
    t.step(1, 0, 100)
    t.op(EVALUATE + "AddmmBackward0", 40, 90)
    assert thread_roles(t.rank_trace()) == {MAIN: "main"}


def test_no_host_events_no_roles() -> None:
    t = Tiny()
    t.kernel(0, 10)
    assert thread_roles(t.rank_trace()) == {}
