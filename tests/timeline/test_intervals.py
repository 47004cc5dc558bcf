"""Unions of intervals, against counting by hand on a grid."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.timeline.critical_path import interval_union

Pairs = list[tuple[float, float]]


def arrays(pairs: Pairs) -> tuple[np.ndarray, np.ndarray]:
    table = np.array(pairs, float).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def pairs(intervals: tuple[np.ndarray, np.ndarray]) -> Pairs:
    return list(zip(intervals[0].tolist(), intervals[1].tolist(), strict=True))


def test_a_union() -> None:
    given_ = [(5, 8), (0, 2), (1, 3), (3, 4), (6, 7), (9, 9)]
    assert pairs(interval_union(*arrays(given_))) == [(0, 4), (5, 8)]
    assert pairs(interval_union(*arrays([]))) == []


some = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 10)).map(lambda p: (p[0], p[0] + p[1])),
    max_size=12,
)


@given(some, st.integers(0, 20), st.integers(0, 30))
def test_a_union_covers_what_its_intervals_do(intervals: Pairs, low: int, span: int) -> None:
    high = low + span
    covered = {u for a, b in intervals for u in range(int(a), int(b)) if low <= u < high}
    busy = pairs(interval_union(*(ends.clip(low, high) for ends in arrays(intervals))))
    assert [u for a, b in busy for u in range(int(a), int(b))] == sorted(covered)
    assert all(a[1] < b[0] for a, b in itertools.pairwise(busy))
