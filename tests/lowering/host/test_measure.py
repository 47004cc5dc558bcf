"""T1 to T5 on traces whose answer can be read off."""

from __future__ import annotations

import random

import pytest
from lowering.host.handmade import AUTOGRAD, call, event, rank_of, step, values

from perfmodel.errors import UsageError
from perfmodel.lowering.host import TYPES
from perfmodel.lowering.host.measure import measure

OPS = [
    step(0, 0, 1000),
    event("aten::linear", 10, 50),
    event("aten::addmm", 12, 45),
    call("cudaLaunchKernel", 20, 25),
    call("cudaMemsetAsync", 30, 38),
    event("aten::view", 60, 70),
    event("aten::relu", 69, 90),
    call("cudaLaunchKernel", 80, 93),
    event("aten::add", 100, 120),
    call("cudaLaunchKernel", 104, 110),
    event("between", 1003, 1006),
    step(1, 1010, 2000),
    event("aten::mul", 1020, 1030),
    event("aten::late", 2001, 2005),
]


def test_every_type_of_one_thread() -> None:
    samples = measure(*rank_of(*OPS))
    assert values(samples, "T1") == [
        ("aten::view", 10),
        ("aten::relu", 0),
        ("aten::add", 10),
        ("between", 883),
    ]
    assert values(samples, "T2") == [("aten::linear", 10), ("aten::add", 4)]
    assert values(samples, "T3") == [("aten::linear", 12), ("aten::add", 10)]
    assert values(samples, "T4") == [("aten::linear", 5), ("aten::linear", 8), ("aten::add", 6)]
    assert values(samples, "T5") == [("aten::linear", 5)]
    assert values(samples, "op_without_launch") == [
        ("aten::view", 9),  # its last microsecond is the next operator's
        ("aten::relu", 21),
        ("between", 3),
        ("aten::mul", 10),
    ]
    assert not samples.blocking.any()


def test_an_operator_that_outlives_its_caller_is_counted_once() -> None:
    samples = measure(
        *rank_of(
            step(0, 0, 1000),
            event("aten::linear", 100, 200),
            event("aten::addmm", 150, 230),
            call("cudaLaunchKernel", 180, 185),
            event("aten::relu", 225, 285),
            call("cudaLaunchKernel", 240, 245),
        )
    )
    assert values(samples, "op_without_launch") == [("aten::linear", 50)]
    assert values(samples, "T2") == [("aten::addmm", 30), ("aten::relu", 15)]
    assert values(samples, "T3") == [("aten::addmm", 40), ("aten::relu", 40)]
    assert values(samples, "T1") == [("aten::addmm", 0), ("aten::relu", 0)]


def test_an_operator_between_two_steps_belongs_to_the_earlier() -> None:
    samples = measure(*rank_of(*OPS))
    assert samples.steps == ("ProfilerStep#0", "ProfilerStep#1")
    assert ("between", 3) in values(samples.of_step(0), "op_without_launch")
    assert values(samples.of_step(1), "op_without_launch") == [("aten::mul", 10)]
    assert len(samples.of_step(0)) + len(samples.of_step(1)) == len(samples)


def test_the_table_holds_count_mean_median_and_sum() -> None:
    table = measure(*rank_of(*OPS)).table()
    assert list(table) == ["main"]
    assert table["main"]["raw"]["T4"] == {
        "count": 3,
        "mean_us": pytest.approx(19 / 3),
        "median_us": 6,
        "total_us": 19,
    }
    assert table["main"]["raw"]["T2"]["median_us"] == 7
    assert table["main"]["no_blocking"] == table["main"]["raw"]
    assert "T5" not in measure(*rank_of(*OPS)).of_step(1).table()["main"]["raw"]


def test_t4_names_its_call() -> None:
    samples = measure(*rank_of(*OPS))
    t4 = samples.type == TYPES.index("T4")
    names = [samples.names[i] for i in samples.call[t4]]
    assert names == ["cudaLaunchKernel", "cudaMemsetAsync", "cudaLaunchKernel"]
    assert (samples.call[~t4] == -1).all()


def test_blocking_calls_mark_what_they_overlap_on_their_thread_only() -> None:
    samples = measure(
        *rank_of(
            step(0, 0, 1000),
            event("aten::to", 10, 200),
            call("cudaMemcpyAsync", 20, 71),
            call("cudaStreamSynchronize", 71, 190),
            event("aten::cat", 300, 400),
            call("cudaMemcpyAsync", 310, 360),
            event("aten::add", 450, 460),
            call("cudaDeviceSynchronize", 470, 480),
            event("aten::sub", 500, 510),
            event("aten::other", 10, 900, thread=7),
        )
    )
    free = samples.without_waiting()
    assert values(samples, "T3") == [("aten::to", 129), ("aten::cat", 40)]
    assert values(free, "T2") == [("aten::to", 10), ("aten::cat", 10)]
    assert values(free, "T3") == [("aten::cat", 40)]
    assert values(free, "T4") == [("aten::cat", 50)], "51 us waited, 50 us did not"
    assert values(free, "T1") == [("aten::cat", 100), ("aten::add", 50)]
    assert values(free, "op_without_launch", "other:0") == [("aten::other", 890)]
    table = samples.table()["main"]
    assert table["raw"]["T1"]["count"] == 3
    assert table["no_blocking"]["T1"]["count"] == 2


def test_gaps_of_the_main_thread_while_autograd_works_are_blocking() -> None:
    wrapper = "autograd::engine::evaluate_function: MulBackward0"
    samples = measure(
        *rank_of(
            step(0, 0, 1000),
            event("aten::mul", 10, 20),
            event(wrapper, 30, 60, thread=AUTOGRAD),
            call("cudaLaunchKernel", 35, 40, thread=AUTOGRAD),
            event(wrapper, 64, 70, thread=AUTOGRAD),
            event("aten::add", 70, 80),
            event("aten::sub", 90, 95),
        )
    )
    free = samples.without_waiting()
    assert values(free, "T1") == [("aten::sub", 10)]
    assert values(free, "T1", "autograd") == [(wrapper, 4)]
    assert values(free, "T2", "autograd") == [(wrapper, 5)]


def test_a_thread_that_old_traces_do_not_name_autograd_is_waited_for_too() -> None:
    samples = measure(
        *rank_of(
            step(0, 0, 1000),
            event("aten::mul", 10, 20),
            event("MulBackward0", 30, 60, thread=AUTOGRAD),
            event("aten::add", 70, 80),
            event("aten::sub", 90, 95),
        )
    )
    assert samples.table()["main"]["no_blocking"]["T1"]["count"] == 2
    assert values(samples.without_waiting(), "T1") == [("aten::sub", 10)]


def test_threads_of_one_role_do_not_mix() -> None:
    wrapper = "autograd::engine::evaluate_function: MulBackward0"
    events = [event(wrapper, t, t + 10, thread=tid) for tid, t in ((2, 10), (3, 15), (2, 40))]
    samples = measure(*rank_of(step(0, 0, 100), event("aten::a", 0, 5), *events))
    assert values(samples, "T1", "autograd") == [(wrapper, 20)]


def test_the_profiler_correction_counts_recorded_events() -> None:
    events = [
        step(0, 0, 1000),
        event("aten::linear", 10, 60),
        event("aten::addmm", 12, 55),
        event("aten::empty", 14, 16),
        call("cudaLaunchKernel", 20, 25),
        call("cudaFuncGetAttributes", 26, 27),
        call("cudaLaunchKernel", 30, 38),
        event("aten::resize", 40, 45),
        call("cudaEventQuery", 62, 63),
        event("aten::view", 70, 80),
        event("aten::alias", 72, 74),
        event("aten::t", 80, 81),
    ]
    samples = measure(*rank_of(*events), profiler_us_per_event=2.0)
    assert samples.profiler_us_per_event == 2.0
    assert values(samples, "T1") == [("aten::view", 10 - 2 * 2), ("aten::t", 0)]
    assert values(samples, "T2") == [("aten::linear", 10 - 2 * 2)]
    assert values(samples, "T3") == [("aten::linear", 22 - 2)]
    assert values(samples, "T4") == [("aten::linear", 3), ("aten::linear", 6)]
    assert values(samples, "T5") == [("aten::linear", 5 - 2)]
    assert values(samples, "op_without_launch") == [("aten::view", 10 - 2), ("aten::t", 1)]


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf")])
def test_an_impossible_correction_is_an_error(wrong: float) -> None:
    with pytest.raises(UsageError, match="profiler_us_per_event"):
        measure(*rank_of(*OPS), profiler_us_per_event=wrong)


def test_a_trace_without_steps_is_one_window() -> None:
    samples = measure(*rank_of(event("aten::a", 5, 10), event("aten::b", 14, 20)))
    assert samples.steps == ("window",)
    assert values(samples, "T1") == [("aten::b", 4)]
    assert values(samples, "op_without_launch") == [("aten::a", 5), ("aten::b", 6)]


@pytest.mark.parametrize(
    "events",
    [
        [],
        [step(0, 0, 10)],
        [call("cudaLaunchKernel", 1, 2)],
        [event("k", 0, 5, "kernel", thread=7)],
        [step(0, 0, 10), event("before", -9, -5)],
    ],
)
def test_nothing_to_measure_is_an_empty_table(events: list[dict[str, object]]) -> None:
    for correction in (0.0, 2.0):
        samples = measure(*rank_of(*events), profiler_us_per_event=correction)
        assert len(samples) == 0
        assert samples.table() == {}


def test_the_order_of_events_in_the_file_does_not_matter() -> None:
    expected = measure(*rank_of(*OPS)).table()
    shuffle = random.Random(7)
    for _ in range(5):
        events = list(OPS)
        shuffle.shuffle(events)
        assert measure(*rank_of(*events)).table() == expected
