"""HugeCTR's planner of tables."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perfmodel.workload import Table, load_workload
from perfmodel.workload.sharding import plan, planned


def test_a_hot_table_is_parted_until_buckets_are_even() -> None:
    """8 and 1 + 1 rows: parted in two, each bucket has 4 + 1."""
    tables = {0: Table(100, 4, 8), 1: Table(100, 4, 1), 2: Table(100, 4, 1)}
    held = planned(tables, 2, table_cost=0.0, row_bytes=1.0, capacity_bytes=1e9)
    assert sorted(map(sorted, held)) == [[0, 1], [0, 2]]


def test_exchange_that_costs_more_keeps_tables_whole() -> None:
    tables = {0: Table(100, 4, 8), 1: Table(100, 4, 6)}
    held = planned(tables, 2, table_cost=5.0, row_bytes=1.0, capacity_bytes=1e9)
    assert held == [[0], [1]]


def test_a_table_larger_than_a_bucket_is_parted() -> None:
    held = planned({0: Table(100, 4)}, 4, table_cost=1.0, row_bytes=1.0, capacity_bytes=30.0)
    assert held == [[0]] * 4


@given(
    st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 50)), min_size=1, max_size=12),
    st.sampled_from([1, 2, 4, 8]),
    st.floats(0, 20),
)
def test_every_part_is_somewhere_and_no_bucket_has_two(
    tables: list[tuple[int, int]], buckets: int, cost: float
) -> None:
    described = {number: Table(*size, 1) for number, size in enumerate(tables)}
    held = planned(described, buckets, table_cost=cost, row_bytes=4, capacity_bytes=1e7)
    assert all(len(set(own)) == len(own) for own in held)
    every = [number for own in held for number in own]
    assert set(every) == set(described)


def test_groups_of_linked_ranks_share_their_tables() -> None:
    """Two groups of four: what a group has, each of its ranks has a quarter of."""
    layout = plan(load_workload("dlrm-dcnv2"), 8, 4)
    held = [[(part.table, part.parts) for part in own] for own in layout.shards]
    assert held[0] == held[3] != held[4]
    assert {parts for own in held for _, parts in own} <= {4, 8}
