"""Columns that grow: values stand in the order in which they came, in as few bytes as they need."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.trace import event_columns
from perfmodel.trace.event_columns import GrowingColumn, packed

NONE = -1
values = st.one_of(st.integers(-5, 5), st.integers(-(2**40), 2**40))
blocks = st.lists(st.one_of(st.lists(values, min_size=1, max_size=9), st.integers(1, 9)))
"""Values, or how many are missing."""


@given(blocks, st.sampled_from([1, 4, 1000]))
def test_values_in_order_and_none_where_missing(drawn: list[list[int] | int], flushed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_columns, "_FLUSHED_VALUES", flushed)
        column, expected = GrowingColumn("q"), []
        for block in drawn:
            if isinstance(block, int):
                column.skip(block)
                expected += [NONE] * block
            else:
                column.extend(packed("q", block))
                expected += block
        found = column.taken()
    assert found.tolist() == expected
    is_wide = any(not -(2**31) <= value < 2**31 for value in expected)
    assert found.itemsize == (8 if is_wide else 4)


def test_floats() -> None:
    column = GrowingColumn("d")
    column.skip(1)
    column.extend(packed("d", [1.5]))
    found = column.taken()
    assert found.tolist() == [NONE, 1.5]
