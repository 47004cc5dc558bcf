"""Columns that grow: what was put stands where it was put, in as few bytes as it needs."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.trace.columns import GrowingColumn

NONE = -1
values = st.one_of(st.integers(-5, 5), st.integers(-(2**40), 2**40))
blocks = st.lists(st.lists(st.tuples(st.integers(1, 4), values), min_size=1, max_size=30))


@given(blocks, st.integers(0, 9))
def test_rows_hold_what_was_put_and_others_nothing(
    drawn: list[list[tuple[int, int]]], behind: int
) -> None:
    column, expected = GrowingColumn(np.int32, NONE), []
    for block in drawn:
        rows = []
        for step, value in block:
            expected += [NONE] * (step - 1) + [value]
            rows.append(len(expected) - 1)
        column.put(np.array(rows), np.array([value for _, value in block]))
    expected += [NONE] * behind
    order = np.arange(len(expected))[::-1]
    found = column.taken(order)
    assert found.tolist() == expected[::-1]
    wide = any(not -(2**31) <= value < 2**31 for block in drawn for _, value in block)
    assert found.dtype == (np.int64 if wide else np.int32)


def test_a_slice_of_rows() -> None:
    column = GrowingColumn(np.float64, 0.0)
    column.put(slice(2, 4), np.array([1.5, 2.5]))
    column.put(slice(6, 7), np.array([3.5]))
    assert column.taken(np.arange(8)).tolist() == [0, 0, 1.5, 2.5, 0, 0, 3.5, 0]
