"""Events of one thread that do not nest."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from kineto_documents import document, event
from tiny import Tiny

from perfmodel.trace.categories import Category
from perfmodel.trace.kineto import decode_kineto
from perfmodel.trace.recording import crossings_us, inconsistencies

SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=12)


def crossings(spans: list[tuple[int, int]]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    t = Tiny()
    for start, length in spans:
        t.op("aten::add", start, start + length)
    rank = t.rank_trace()
    return crossings_us(rank, rank.of(Category.CPU_OP))


@given(SPANS)
def test_a_crossing_is_found_wherever_there_is_one(spans: list[tuple[int, int]]) -> None:
    """By the definition, each pair in turn."""
    ordered = sorted(((a, a + n) for a, n in spans), key=lambda each: (each[0], -each[1]))
    crossing = any(
        start < earlier < end
        for at, (start, end) in enumerate(ordered)
        for _, earlier in ordered[:at]
    )
    assert (crossings(spans) > 0).any() == crossing


def test_how_far_one_crosses() -> None:
    assert crossings([(0, 100), (10, 20), (25, 30)]).max() == 5  # 25 to 30 of 10 to 30
    assert crossings([(0, 100), (10, 20), (30, 70)]).max() <= 0


def test_other_threads_do_not_count() -> None:
    t = Tiny()
    t.op("aten::add", 0, 10)
    t.op("aten::mm", 5, 20, thread=99)
    rank = t.rank_trace()
    assert (crossings_us(rank, rank.of(Category.CPU_OP)) <= 0).all()


def faults_of(*events: dict[str, Any]) -> list[str]:
    """What is said of one thread's events, without the number of microseconds."""
    said = inconsistencies(decode_kineto(document(*events), "file"))
    return [text.rsplit(" (", 1)[0] for text in said]


def test_calls_cross_operators_but_not_one_another() -> None:
    """Operators and calls have recorders of their own, on clocks that differ by up to 10 ms."""
    op = event("aten::add", "cpu_op", 0, 100)
    call = event("cudaLaunchKernel", "cuda_runtime", 90, 20)
    assert faults_of(op, call) == []
    other = event("cudaLaunchKernel", "cuda_runtime", 105, 20)
    crosses = "begin within another event of their thread and end after it"
    assert faults_of(op, call, other) == [f"1 calls {crosses}"]


def test_a_step_does_not_end_within_a_call() -> None:
    """A step whose duration was halved: nothing else of the file says so."""
    call = event("cudaDeviceSynchronize", "cuda_runtime", 300, 650)
    assert faults_of(event("ProfilerStep#1", "user_annotation", 0, 1000), call) == []
    said = faults_of(event("ProfilerStep#1", "user_annotation", 0, 500), call)
    assert [text.split(",")[0] for text in said] == ["1 calls"]


def test_python_functions_cross_steps_but_not_one_another() -> None:
    step = event("ProfilerStep#1", "user_annotation", 0, 100)
    function = event("train.py(3): step", "python_function", 90, 20)
    assert faults_of(step, function) == []
    other = event("train.py(9): log", "python_function", 105, 20)
    crosses = "begin within another event of their thread and end after it"
    assert faults_of(step, function, other) == [f"1 Python functions {crosses}"]
