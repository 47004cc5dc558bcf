"""Events of one thread that do not nest."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tiny import Tiny

from perfmodel.trace.categories import Category
from perfmodel.trace.recording import crossings_us

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
