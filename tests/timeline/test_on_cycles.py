"""Which nodes lie on a cycle."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.timeline.steady import on_cycles

COUNT = 7
Edges = list[tuple[int, int]]


def found(edges: Edges, count: int = COUNT) -> list[bool]:
    source, target = np.array(edges, np.int64).reshape(-1, 2).T
    return on_cycles(source, target, count).tolist()


def test_a_way_between_two_cycles_is_on_none() -> None:
    """0 and 1 follow one another, 2 leads on to 3, which comes back to itself, 4 stands alone."""
    edges = [(0, 1), (1, 0), (1, 2), (2, 3), (3, 3)]
    assert found(edges, 5) == [True, True, False, True, False]
    assert found([], 2) == [False, False]


@given(st.lists(st.tuples(*[st.integers(0, COUNT - 1)] * 2), max_size=20))
def test_a_node_is_on_a_cycle_where_it_reaches_itself(edges: Edges) -> None:
    reaches = np.zeros((COUNT, COUNT), np.bool_)
    for source, target in edges:
        reaches[source, target] = True
    for over in range(COUNT):
        reaches |= reaches[:, over, None] & reaches[over]
    assert found(edges) == reaches.diagonal().tolist()


def test_a_long_cycle_needs_no_recursion() -> None:
    count = 20_000
    assert all(found([(at, (at + 1) % count) for at in range(count)], count))
