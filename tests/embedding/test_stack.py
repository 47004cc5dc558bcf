"""Stack distances against their definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from perfmodel.embedding.stack_distances import (
    NEVER,
    earlier_not_larger,
    lfu_distances,
    lru_distances,
)

from perfmodel.base.arrays import Ints

STREAMS = st.lists(st.integers(0, 8), min_size=1, max_size=60)


def by_definition(rows: Ints, step: Ints, frequency: bool) -> list[int]:
    """Rows of higher priority when the step begins, counted one by one."""
    found: list[int] = []
    priority: dict[int, tuple[int, int]] = {}
    for number in np.unique(step):
        places = np.flatnonzero(step == number)
        for row in rows[places].tolist():
            mine = priority.get(row)
            higher = sum(other > mine for other in priority.values()) if mine else NEVER
            found.append(higher)
        for place in places.tolist():
            row = int(rows[place])
            count = priority.get(row, (0, 0))[0] + 1 if frequency else 0
            priority[row] = (count, place)
    return found


@given(STREAMS, st.integers(1, 12))
def test_lru_distances_are_what_they_mean(stream: list[int], batch: int) -> None:
    rows = np.array(stream)
    step = np.arange(len(rows)) // batch
    assert lru_distances(rows, step).tolist() == by_definition(rows, step, frequency=False)


@given(STREAMS, st.integers(1, 12))
def test_lfu_distances_are_what_they_mean(stream: list[int], batch: int) -> None:
    rows = np.array(stream)
    step = np.arange(len(rows)) // batch
    assert lfu_distances(rows, step).tolist() == by_definition(rows, step, frequency=True)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), max_size=40))
def test_earlier_not_larger_against_counting(pairs: list[tuple[int, int]]) -> None:
    values = np.array([value for value, _ in pairs], np.int64)
    group = np.sort(np.array([number for _, number in pairs], np.int64))
    expected = [
        sum(int(values[j] <= values[i] and group[j] == group[i]) for j in range(i))
        for i in range(len(values))
    ]
    assert earlier_not_larger(values, group).tolist() == expected


def test_lru_by_hand() -> None:
    rows = np.array([7, 8, 7, 9, 8, 7])
    assert lru_distances(rows, np.arange(6)).tolist() == [NEVER, NEVER, 1, NEVER, 2, 2]


def test_lfu_by_hand() -> None:
    rows = np.array([7, 7, 8, 9, 7, 8])
    assert lfu_distances(rows, np.arange(6)).tolist() == [NEVER, 0, NEVER, NEVER, 0, 2]


@pytest.mark.parametrize("distances", [lru_distances, lfu_distances])
def test_nothing_is_reused_in_an_empty_stream(distances) -> None:  # type: ignore[no-untyped-def]
    empty = np.zeros(0, np.int64)
    assert len(distances(empty, empty)) == 0
