"""Reordered queries: the same queries, and more reuse among neighbours."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.embedding import Lru, draw_lookups, replay, zipf
from perfmodel.embedding.index_streams import Queries, query_graph, reordered
from perfmodel.errors import WorkloadError


def queries_of(*rows: list[int]) -> Queries:
    lengths = [len(each) for each in rows]
    return Queries(np.cumsum([0, *lengths]), np.array([row for each in rows for row in each]))


ALTERNATING = queries_of([1, 2, 3], [7, 8], [1, 2], [7, 9, 8], [2, 3])


def test_edges_are_rows_in_common() -> None:
    graph, pairs = query_graph(ALTERNATING)
    assert graph.toarray().tolist() == [
        [0, 0, 2, 0, 2],
        [0, 0, 0, 2, 0],
        [2, 0, 0, 0, 1],
        [0, 2, 0, 0, 0],
        [2, 0, 1, 0, 0],
    ]
    assert pairs == 4 * 2**2 + 3**2


def test_queries_that_share_rows_come_together() -> None:
    order, _ = reordered(ALTERNATING)
    groups = [int(query) % 2 for query in order]
    assert groups in ([0, 0, 0, 1, 1], [1, 1, 0, 0, 0])
    ordered = ALTERNATING.in_order(order)
    assert ordered.reuse(3) > ALTERNATING.reuse(3)
    assert ordered.reuse(5) == ALTERNATING.reuse(5) == pytest.approx(12 / 6)


@given(st.lists(st.lists(st.integers(0, 30), max_size=6), min_size=1, max_size=40))
def test_every_query_comes_once_and_whole(rows: list[list[int]]) -> None:
    queries = queries_of(*rows)
    order, _ = reordered(queries)
    assert sorted(order.tolist()) == list(range(len(rows)))
    ordered = queries.in_order(order)
    for place, query in enumerate(order.tolist()):
        begin, end = ordered.offsets[place : place + 2]
        assert ordered.rows[begin:end].tolist() == rows[query]


def test_an_lru_cache_finds_more_where_queries_have_topics() -> None:
    generator = np.random.default_rng(1)
    topics = generator.integers(0, 50, 1_000)
    rows = topics[:, None] * 400 + generator.integers(0, 400, (1_000, 20))
    queries = Queries(np.arange(0, 20_001, 20), rows.ravel())
    ordered = queries.in_order(reordered(queries)[0])
    before, after = (replay(each.rows, 1_000, Lru()).hit_frac for each in (queries, ordered))
    assert after > before + 0.2
    assert ordered.reuse(20) > 1.2 * queries.reuse(20)


def test_reuse_among_neighbours_is_at_most_that_of_the_batch() -> None:
    rows = draw_lookups(zipf(20_000, 0.9), 10_000, seed=2)
    queries = Queries(np.arange(0, 10_001, 10), rows)
    ordered = queries.in_order(reordered(queries)[0])
    assert queries.reuse(50) < ordered.reuse(50) < queries.reuse(len(queries))


def test_popular_rows_join_nothing() -> None:
    few, many = (queries_of(*([[0, n] for n in range(1, count + 1)])) for count in (9, 65))
    assert query_graph(many)[0].nnz == 0
    assert query_graph(few)[0].nnz == 9 * 8


def test_what_are_no_queries_is_refused() -> None:
    with pytest.raises(WorkloadError, match="end at 3 of 2"):
        Queries(np.array([0, 3]), np.array([1, 2]))
    with pytest.raises(WorkloadError, match="ascend"):
        Queries(np.array([0, 2, 1]), np.array([1]))
