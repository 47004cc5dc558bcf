"""Host threads cut into pieces: T1 to T5, calls, data loading, without holes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tiny import AUTOGRAD, MAIN, WORKER, Tiny

from perfmodel.timeline.graph.host import ALLOCATOR, ELAPSED, LAUNCH, SYNC, Pieces, cut_threads
from perfmodel.timeline.graph.kinds import Cause

CALLS = {LAUNCH: "launch", SYNC: "sync", ALLOCATOR: "allocator", ELAPSED: "elapsed"}


def pieces_of(t: Tiny, thread: int = MAIN) -> list[tuple[float, float, str]]:
    """(start, end, what) of the pieces of one thread."""
    pieces = cut_threads(*t.linked())
    return [
        (
            float(pieces.start_us[i]),
            float(pieces.end_us[i]),
            CALLS.get(int(pieces.call[i])) or Cause(pieces.cause[i]).name.removeprefix("HOST_"),
        )
        for i in np.flatnonzero(pieces.thread == thread)
    ]


def test_t1_to_t5() -> None:
    t = Tiny()
    t.step(1, 0, 100)
    t.op("aten::linear", 10, 60)
    t.op("aten::mm", 12, 50)
    t.launch(20, 25, kernel=(30, 40))
    t.launch(40, 45, kernel=(50, 60))
    t.op("aten::view", 70, 72)
    assert pieces_of(t) == [
        (0, 10, "T1"),
        (10, 20, "T2"),
        (20, 25, "launch"),
        (25, 40, "T5"),
        (40, 45, "launch"),
        (45, 60, "T3"),
        (60, 70, "T1"),
        (70, 72, "OP_WITHOUT_LAUNCH"),
        (72, 100, "T1"),
    ]


def test_a_launch_that_fills_its_operator_leaves_no_t2_and_no_t3() -> None:
    t = Tiny()
    t.op("aten::mm", 0, 10)
    t.launch(0, 10, kernel=(20, 30))
    assert pieces_of(t) == [(0, 10, "launch")]


def test_a_launch_that_ends_after_its_operator_is_of_none() -> None:
    t = Tiny()
    t.op("aten::mm", 0, 10)
    t.launch(8, 11, kernel=(20, 30))
    t.op("aten::mm", 12, 14)
    assert pieces_of(t) == [
        (0, 8, "OP_WITHOUT_LAUNCH"),
        (8, 11, "launch"),
        (11, 12, "T1"),
        (12, 14, "OP_WITHOUT_LAUNCH"),
    ]


def test_other_calls_are_pieces_too_and_calls_without_effect_are_not() -> None:
    t = Tiny()
    t.op("aten::empty", 0, 40)
    t.call("cudaGetDevice", 2, 4)
    t.call("cudaMalloc", 10, 20)
    t.call("cudaStreamSynchronize", 50, 60)
    t.call("cudaEventElapsedTime", 60, 62)
    assert pieces_of(t) == [
        (0, 10, "OP_WITHOUT_LAUNCH"),
        (10, 20, "allocator"),
        (20, 40, "OP_WITHOUT_LAUNCH"),
        (40, 50, "T1"),
        (50, 60, "sync"),
        (60, 62, "elapsed"),
    ]


def test_a_call_within_a_call_is_part_of_it() -> None:
    t = Tiny()
    t.op("aten::mm", 0, 30)
    outer = t.call("cudaLaunchKernelExC", 5, 15)
    inner = t.call("cuLaunchKernelEx", 7, 12, category="cuda_driver")
    t.kernel(20, 40, correlation=inner)
    rank, links = t.linked()
    pieces = cut_threads(rank, links)
    assert pieces_of(t) == [(0, 5, "T2"), (5, 15, "launch"), (15, 30, "T3")]
    calls = np.flatnonzero(pieces.row_piece >= 0)
    rows = dict(zip(rank.correlation[calls], pieces.row_piece[calls], strict=True))
    assert rows[outer] == rows[inner] == 1


def test_an_unknown_call_that_launched_a_kernel_is_a_launch() -> None:
    t = Tiny()
    t.op("aten::mm", 0, 30)
    t.launch(5, 15, kernel=(20, 30), call="rocblasStrangeLaunch")
    assert pieces_of(t)[1] == (5, 15, "launch")


def test_a_call_of_no_length_belongs_to_the_piece_before_it() -> None:
    t = Tiny()
    t.op("aten::a", 0, 8)
    t.op("aten::mm", 9, 30)
    t.launch(10, 10, kernel=(20, 30))
    rank, links = t.linked()
    pieces = cut_threads(rank, links)
    piece = pieces.of_call(int(links.device_launch[0]))
    # No operator or longer call ends at 10, so it is the piece that ends last before.
    assert pieces.end_us[piece] <= 10


def test_calls_that_overlap_by_rounding_are_cut_where_the_first_ends() -> None:
    t = Tiny()
    t.op("aten::mm", 0, 30)
    t.launch(5, 11, kernel=(20, 30))
    t.launch(10, 15, kernel=(40, 50))
    assert pieces_of(t) == [(0, 5, "T2"), (5, 11, "launch"), (11, 15, "launch"), (15, 30, "T3")]


def test_steps_cut_the_main_thread_only() -> None:
    t = Tiny()
    t.step(1, 0, 50)
    t.step(2, 50, 100)
    t.op("aten::a", 10, 20)
    t.op("aten::a", 60, 70)
    t.op("evaluate", 20, 30, WORKER)
    t.op("evaluate", 70, 80, WORKER)
    spans = [(start, end) for start, end, _ in pieces_of(t)]
    assert spans == [(0, 10), (10, 20), (20, 50), (50, 60), (60, 70), (70, 100)]
    assert [(start, end) for start, end, _ in pieces_of(t, WORKER)] == [
        (20, 30),
        (30, 70),
        (70, 80),
    ]


def test_work_within_data_loading_is_data_loading_but_its_calls_are_calls() -> None:
    t = Tiny()
    t.step(1, 0, 100)
    t.note("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 10, 48)
    t.op("aten::stack", 20, 30)
    t.copy(35, 38, copy=(40, 45))
    t.op("aten::mm", 60, 70)
    assert pieces_of(t) == [
        (0, 20, "DATA_LOADING"),
        (20, 30, "DATA_LOADING"),
        (30, 35, "DATA_LOADING"),
        (35, 38, "launch"),
        (38, 60, "T1"),
        (60, 70, "OP_WITHOUT_LAUNCH"),
        (70, 100, "T1"),
    ]


def test_a_gap_is_named_after_the_operator_that_follows() -> None:
    t = Tiny()
    t.op("aten::a", 0, 10)
    t.op("aten::b", 20, 30)
    rank, links = t.linked()
    pieces = cut_threads(rank, links)
    assert [rank.text(row) for row in pieces.row] == ["aten::a", "aten::b", "aten::b"]


def test_the_annotation_of_a_piece_is_the_innermost_around_it() -> None:
    t = Tiny()
    t.step(1, 0, 100)
    t.note("## forward ##", 5, 60)
    t.note("## embedding ##", 8, 34)
    t.op("aten::a", 10, 30)
    t.op("aten::b", 40, 50)
    rank, links = t.linked()
    pieces = cut_threads(rank, links)
    names = [rank.text(row) for row in pieces.annotation]
    assert names == [
        "## forward ##",
        "## embedding ##",
        "## forward ##",
        "## forward ##",
        "ProfilerStep#1",
    ]


event = st.tuples(
    st.sampled_from(
        [
            *("aten::mm", "aten::add", "cudaLaunchKernel", "cudaStreamSynchronize", "cudaMalloc"),
            *("cudaFree", "cudaEventElapsedTime", "cudaGetDevice", "note"),
        ]
    ),
    st.integers(0, 60),
    st.integers(0, 20),
    st.sampled_from([MAIN, AUTOGRAD]),
)


def drawn(events: list[tuple[str, int, int, int]], with_step: bool) -> Tiny:
    t = Tiny()
    if with_step:
        t.step(1, 5, 70)
    for name, start, length, thread in events:
        if name.startswith("aten"):
            t.op(name, start, start + length, thread)
        elif name == "note":
            t.note(name, start, start + length, thread)
        else:
            t.call(name, start, start + length, thread)
    return t


def assert_covers(t: Tiny, pieces: Pieces, thread: int) -> None:
    own = np.flatnonzero(pieces.thread == thread)
    start, end = pieces.start_us[own], pieces.end_us[own]
    assert (start[1:] == end[:-1]).all()
    assert (end > start).all()


@given(st.lists(event, min_size=1, max_size=15), st.booleans())
def test_pieces_cover_a_thread_without_holes(
    events: list[tuple[str, int, int, int]], with_step: bool
) -> None:
    t = drawn(events, with_step)
    rank, links = t.linked()
    pieces = cut_threads(rank, links)
    for thread in MAIN, AUTOGRAD:
        assert_covers(t, pieces, thread)
        own = np.flatnonzero(pieces.thread == thread)
        op = [r for r in links.top_ops if rank.thread[r] == thread and rank.duration_us[r] > 0]
        for row in op:
            assert pieces.start_us[own[0]] <= rank.start_us[row]
            assert pieces.end_us[own[-1]] >= rank.end_us[row]
    for row in np.flatnonzero(pieces.row_piece >= 0):
        piece = pieces.row_piece[row]
        assert rank.thread[row] == pieces.thread[piece]
        if rank.duration_us[row]:
            # Calls that overlap are cut where the first of them ends.
            assert pieces.start_us[piece] <= rank.end_us[row]
            assert pieces.end_us[piece] >= rank.start_us[row]
