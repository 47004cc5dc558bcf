"""Kernels to launches to operators, and the intervals they stand in."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import AUTOGRAD, COPIES, MAIN, Tiny

from perfmodel.errors import TraceError
from perfmodel.trace.categories import LAUNCH_CALL, Category
from perfmodel.trace.columns import RankTrace
from perfmodel.trace.link import Nesting, by_thread, containing_index, equal_runs, outermost


def ops_of(rank: RankTrace) -> np.ndarray:
    return rank.of(Category.CPU_OP)


def outermost_names(*ops: tuple[str, float, float]) -> list[str]:
    t = Tiny()
    for op in ops:
        t.op(*op)
    rank = t.rank_trace()
    return [rank.text(row) for row in outermost(rank, ops_of(rank))]


def test_outermost_drops_what_an_operator_encloses() -> None:
    assert outermost_names(("a", 0, 100), ("b", 10, 20), ("c", 12, 15), ("d", 100, 110)) == [
        "a",
        "d",
    ]


def test_outermost_of_equal_intervals_is_the_one_that_began_first() -> None:
    t = Tiny()
    t.op("inner", 0, 10, **{"Ev Idx": 8})
    t.op("outer", 0, 10, **{"Ev Idx": 7})
    rank = t.rank_trace()
    assert [rank.text(row) for row in outermost(rank, ops_of(rank))] == ["outer"]


def test_neighbours_that_overlap_by_rounding_are_outermost_both() -> None:
    assert outermost_names(("a", 0, 10), ("b", 9, 20), ("c", 12, 19)) == ["a", "b"]


def test_an_enclosed_operator_may_share_an_end_with_the_outer_one() -> None:
    assert outermost_names(("a", 0, 10), ("starts with it", 0, 4), ("ends with it", 4, 10)) == ["a"]


def test_zero_length_operators_inside_are_enclosed_and_at_the_end_are_not() -> None:
    assert outermost_names(("a", 0, 10), ("at start", 0, 0), ("inside", 5, 5)) == ["a"]
    assert outermost_names(("a", 0, 10), ("at end", 10, 10)) == ["a", "at end"]


def test_outermost_is_per_thread() -> None:
    t = Tiny()
    t.op("a", 0, 100)
    t.op("b", 10, 20, AUTOGRAD)
    rank = t.rank_trace()
    assert [rank.text(row) for row in outermost(rank, ops_of(rank))] == ["a", "b"]


def contained(t: Tiny) -> list[tuple[str, str]]:
    """(call, operator it belongs to) by thread, then time."""
    rank, links = t.linked()
    return [
        (
            rank.text(row) + f"@{rank.start_us[row]:g}",
            rank.text(links.top_ops[op]) if op >= 0 else "",
        )
        for row, op in zip(links.launches, links.launch_op, strict=True)
    ]


def test_a_launch_belongs_to_the_operator_it_begins_and_ends_in() -> None:
    t = Tiny()
    t.op("a", 0, 10)
    t.op("inner", 1, 9)
    t.op("b", 20, 30)
    for span in (2, 5), (8, 11), (12, 15), (19, 22), (20, 30), (30, 31):
        t.call("cudaLaunchKernel", *span)
    assert contained(t) == [
        ("cudaLaunchKernel@2", "a"),
        ("cudaLaunchKernel@8", ""),
        ("cudaLaunchKernel@12", ""),
        ("cudaLaunchKernel@19", ""),
        ("cudaLaunchKernel@20", "b"),
        ("cudaLaunchKernel@30", ""),
    ]


def test_a_launch_in_the_overlap_of_two_operators_belongs_to_the_later() -> None:
    t = Tiny()
    t.op("a", 0, 10)
    t.op("b", 8, 20)
    t.call("cudaLaunchKernel", 5, 9)
    t.call("cudaLaunchKernel", 9, 10)
    assert contained(t) == [("cudaLaunchKernel@5", "a"), ("cudaLaunchKernel@9", "b")]


def test_a_launch_does_not_belong_to_an_operator_of_another_thread() -> None:
    t = Tiny()
    t.op("a", 0, 100)
    t.op("b", 0, 5, AUTOGRAD)
    t.call("cudaLaunchKernel", 20, 30, AUTOGRAD)
    assert contained(t) == [("cudaLaunchKernel@20", "")]


def test_innermost() -> None:
    t = Tiny()
    for name, start, end in ("a", 0, 100), ("b", 10, 30), ("c", 15, 20), ("d", 25, 40):
        t.note(name, start, end)
    rank = t.rank_trace()
    boxes = rank.of(Category.ANNOTATION)
    times = np.array([-1, 5, 10, 17, 22, 27, 35, 50, 100, 101], float)
    main = np.full(len(times), MAIN)
    found = [rank.text(row) if row >= 0 else "" for row in Nesting(rank, boxes).around(main, times)]
    assert found == ["", "a", "b", "c", "b", "d", "d", "a", "a", ""]


def test_innermost_of_no_containers() -> None:
    rank = Tiny().rank_trace()
    assert Nesting(rank, np.zeros(0, np.int64)).around(
        np.array([MAIN]), np.array([1.0])
    ).tolist() == [-1]


spans = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 10), st.integers(1, 2)), min_size=1, max_size=12
)


@given(spans)
def test_outermost_containing_and_innermost_agree_with_their_definitions(
    events: list[tuple[int, int, int]],
) -> None:
    t = Tiny()
    for number, (start, length, thread) in enumerate(events):
        t.op(str(number), start, start + length, thread)
    rank = t.rank_trace()
    rows = by_thread(rank, ops_of(rank))
    start, end, thread = rank.start_us, rank.end_us, rank.thread
    top = outermost(rank, rows)
    for at, row in enumerate(rows):
        before = [r for r in rows[:at] if thread[r] == thread[row]]
        latest = max((end[r] for r in before), default=-1)
        assert (row in top) == (end[row] > latest or start[row] >= latest)
    for row, found in zip(rows, containing_index(rank, rows, top), strict=True):
        if found >= 0:
            box = top[found]
            assert thread[box] == thread[row]
            assert start[box] <= start[row] <= end[row] <= end[box]
        else:
            started = [b for b in top if thread[b] == thread[row] and start[b] <= start[row]]
            assert not started or end[started[-1]] < end[row]
    for number in (1, 2):
        times, own = np.arange(0, 42) + 0.5, rows[thread[rows] == number]
        on = np.full(len(times), number)
        for time, found in zip(times, Nesting(rank, rows).around(on, times), strict=True):
            around = [r for r in own if start[r] < time < end[r]]
            assert found == (around[-1] if around else -1)


def test_runs() -> None:
    assert equal_runs(np.array([], np.int64)) == []
    assert equal_runs(np.array([3, 3, 1, 3])) == [(0, 2), (2, 3), (3, 4)]


def launched(t: Tiny) -> list[tuple[float, str]]:
    """(start of a device operation, its launch call) in order of start."""
    rank, links = t.linked()
    return [
        (
            float(rank.start_us[row]),
            f"{rank.text(call)}@{rank.start_us[call]:g}" if call >= 0 else "",
        )
        for row, call in zip(links.device_rows, links.device_launch, strict=True)
    ]


def test_kernels_are_tied_by_correlation_not_by_time_or_external_id() -> None:
    t = Tiny()
    first = t.call("cudaLaunchKernel", 0, 5)
    second = t.call("cudaLaunchKernel", 10, 15)
    t.kernel(20, 30, correlation=second)
    t.kernel(30, 40, correlation=first)
    for event in t.events:
        event["args"]["External id"] = 7
    assert launched(t) == [(20.0, "cudaLaunchKernel@10"), (30.0, "cudaLaunchKernel@0")]


def test_one_graph_launch_is_the_launch_of_all_its_kernels() -> None:
    t = Tiny()
    t.launch(0, 9, kernel=[(10, 12), (13, 15), (16, 20)], call="cudaGraphLaunch")
    assert launched(t) == [(start, "cudaGraphLaunch@0") for start in (10.0, 13.0, 16.0)]


def test_kernels_launched_before_the_window_have_no_launch() -> None:
    t = Tiny()
    t.kernel(0, 10, correlation=55)
    t.kernel(10, 20)
    t.launch(12, 15, kernel=(20, 30))
    assert launched(t) == [(0.0, ""), (10.0, ""), (20.0, "cudaLaunchKernel@12")]


def test_correlation_zero_ties_nothing() -> None:
    t = Tiny()
    t.call("cudaGetDevice", 0, 1, correlation=0)
    t.call("cudaGetDevice", 2, 3, correlation=0)
    t.kernel(10, 20, correlation=0)
    assert launched(t) == [(10.0, "")]


def test_two_launch_calls_of_one_correlation_are_an_error_that_names_both() -> None:
    t = Tiny(where="rank0.json")
    t.op("aten::mm", 0, 9)
    t.call("cudaLaunchKernel", 1, 2, correlation=7)
    t.call("cudaLaunchKernel", 3, 4, correlation=7)
    t.kernel(10, 20, correlation=7)
    with pytest.raises(
        TraceError, match=r"^rank0.json: traceEvents\[1\] and traceEvents\[2\].*correlation 7"
    ):
        t.linked()


def test_repeated_correlations_that_no_kernel_uses_do_no_harm() -> None:
    t = Tiny()
    t.call("cudaGetDevice", 0, 1, correlation=7)
    t.call("cudaGetDevice", 3, 4, correlation=7)
    t.launch(5, 6, kernel=(10, 20))
    assert launched(t) == [(10.0, "cudaLaunchKernel@5")]


def test_copies_and_memsets_are_device_work_and_annotations_on_the_device_are_not() -> None:
    t = Tiny()
    t.copy(0, 2, copy=(10, 20), stream=COPIES)
    t.launch(3, 4, (11, 12), call="cudaMemsetAsync", name="Memset", category="gpu_memset")
    t.kernel(5, 30, name="## forward ##", category="gpu_user_annotation")
    assert launched(t) == [(10.0, "cudaMemcpyAsync@0"), (11.0, "cudaMemsetAsync@3")]


@pytest.mark.parametrize(
    "call",
    [
        *("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx"),
        *("cudaLaunchCooperativeKernel", "cudaGraphLaunch", "cudaMemcpyAsync", "cudaMemsetAsync"),
        *("cudaMemcpy", "cuMemcpyHtoDAsync_v2", "hipLaunchKernel", "hipExtModuleLaunchKernel"),
        *("hipExtLaunchKernel", "hipModuleLaunchKernel", "hipMemcpyWithStream", "hipGraphLaunch"),
    ],
)
def test_calls_that_launch(call: str) -> None:
    assert LAUNCH_CALL.match(call)


@pytest.mark.parametrize(
    "call",
    [
        *("cudaStreamSynchronize", "cudaMalloc", "cudaFree", "cudaEventRecord", "cudaGetDevice"),
        *("cudaStreamWaitEvent", "cudaMemGetInfo", "cudaGraphInstantiate", "cudaEventElapsedTime"),
    ],
)
def test_calls_that_do_not_launch(call: str) -> None:
    assert not LAUNCH_CALL.match(call)


def test_recorded_share_is_the_density_of_the_ids() -> None:
    t = Tiny()
    for number in (1, 2, 3, 20):
        t.op("a", number * 10, number * 10 + 5, **{"External id": number})
    assert t.linked()[1].recorded_frac == pytest.approx(4 / 20)


def test_recorded_share_without_ids_is_whole() -> None:
    t = Tiny()
    t.op("a", 0, 5)
    assert t.linked()[1].recorded_frac == 1.0


def test_rows_by_thread_keep_the_order_of_time() -> None:
    t = Tiny()
    for start, thread in (0, AUTOGRAD), (1, MAIN), (2, AUTOGRAD), (3, MAIN):
        t.op("a", start, start + 0.5, thread)
    rank = t.rank_trace()
    rows = by_thread(rank, ops_of(rank))
    assert rank.start_us[rows].tolist() == [1, 3, 0, 2]


def test_names_match_at_their_start_and_contain_anywhere() -> None:
    t = Tiny()
    for name in ("wait", "x wait()", "go"):
        t.op(name, 0, 1)
    rank = t.rank_trace()
    wait = re.compile("wait")
    assert rank.name_matches(wait).sum() == 1
    assert rank.name_contains(wait).sum() == 2
