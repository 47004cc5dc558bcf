"""What collectives carry under each sharding: Neo's identities, exactly, and conservation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from workload.exchange_volumes import volumes

from perfmodel.embedding import Placement, TablePlacement
from perfmodel.errors import WorkloadError
from perfmodel.workload import load_workload
from perfmodel.workload.sharding import Plan, Shard, plan_of_placement
from perfmodel.workload.tables import Table

RANKS, LINKED, BATCH, DIM, POOLING = 8, 4, 800, 64, 3.0
OTHERS = (RANKS - 1) / RANKS
ROWS = 1000


def _of(*tables: TablePlacement, rows: int = ROWS) -> dict:
    workload = replace(
        load_workload("lin-dlrm-ddp"), tables=(Table(rows, DIM, POOLING),) * len(tables)
    )
    found = volumes(workload, Placement(tables), RANKS, BATCH, linked=LINKED, forward_bytes=2.0)
    return {(each.phase, each.collective): each for each in found}


def test_table_wise_and_column_wise_send_each_pooled_row_once() -> None:
    for about in (
        TablePlacement("table_wise", (3,)),
        TablePlacement("column_wise", (1, 3)),
        TablePlacement("column_wise", (0, 2, 5, 7)),
    ):
        found = _of(about)
        count = len(about.ranks)
        forward, backward = found["forward", "all_to_all"], found["backward", "all_to_all"]
        each = OTHERS * BATCH * DIM * 2.0 / count
        assert forward.sent_bytes[list(about.ranks)] == pytest.approx(each)
        assert forward.sent_bytes.sum() == pytest.approx(OTHERS * BATCH * DIM * 2.0)
        assert backward.received_bytes.sum() == pytest.approx(OTHERS * BATCH * DIM * 4.0)
        keys = found["input", "all_to_all"]
        assert keys.received_bytes.sum() == pytest.approx(
            count * OTHERS * BATCH * (POOLING * 8 + 4)
        )


def test_row_wise_sends_partial_sums_of_every_rank() -> None:
    found = _of(TablePlacement("row_wise", tuple(range(RANKS))))
    each = OTHERS * BATCH * DIM
    np.testing.assert_allclose(found["forward", "reduce_scatter"].sent_bytes, each * 2.0)
    np.testing.assert_allclose(found["backward", "all_gather"].received_bytes, each * 4.0)
    keys = found["input", "all_to_all"].received_bytes
    np.testing.assert_allclose(keys, OTHERS * BATCH * (POOLING * 8 / RANKS + 4))


def test_table_row_wise_sums_within_a_node_and_then_crosses_once() -> None:
    found = _of(TablePlacement("table_row_wise", (4, 5, 6, 7)))
    within, across = found["forward", "reduce_scatter"], found["forward", "all_to_all"]
    np.testing.assert_allclose(within.sent_bytes[:4], 0)
    np.testing.assert_allclose(within.sent_bytes[4:], 3 / 4 * BATCH * DIM * 2.0)
    np.testing.assert_allclose(across.sent_bytes[4:], 1 / 2 * BATCH * DIM / LINKED * 2.0)


def test_data_parallel_sums_the_whole_table() -> None:
    found = _of(TablePlacement("data_parallel", tuple(range(RANKS))))
    assert list(found) == [("backward", "all_reduce")]
    expected = 2 * OTHERS * ROWS * DIM * 4.0
    np.testing.assert_allclose(found["backward", "all_reduce"].sent_bytes, expected)


@pytest.mark.parametrize(("rows", "is_cheaper"), [(79, True), (80, False)])
def test_data_parallel_is_cheaper_where_rows_are_few(rows: int, is_cheaper: bool) -> None:
    """2 E w < b (c_f + c_b) + b L I / D, here 8 E < 637.5, beside balanced whole tables."""
    whole = _of(
        *(TablePlacement("data_parallel", tuple(range(RANKS))) for _ in range(RANKS)), rows=rows
    )
    balanced = _of(*(TablePlacement("table_wise", (rank,)) for rank in range(RANKS)), rows=rows)
    moved = sum(found.sent_bytes[0] for found in balanced.values())
    lengths = OTHERS * BATCH * 4
    replicas = whole["backward", "all_reduce"].sent_bytes[0]
    assert bool(replicas < moved - lengths) is is_cheaper


KINDS = st.sampled_from(
    [
        TablePlacement("table_wise", (2,)),
        TablePlacement("column_wise", (6, 1)),
        TablePlacement("row_wise", tuple(range(RANKS))),
        TablePlacement("row_wise", (1, 5, 6)),
        TablePlacement("table_row_wise", (0, 1, 2, 3)),
        TablePlacement("data_parallel", tuple(range(RANKS))),
    ]
)


@settings(max_examples=30)
@given(st.lists(KINDS, min_size=1, max_size=6))
def test_what_is_sent_is_received(tables: list[TablePlacement]) -> None:
    for each in _of(*tables).values():
        assert each.sent_bytes.sum() == pytest.approx(each.received_bytes.sum())
        assert (each.sent_bytes >= 0).all()


def test_the_plan_of_a_placement() -> None:
    workload = replace(load_workload("lin-dlrm-ddp"), tables=(Table(ROWS, DIM),) * 3)
    placement = Placement(
        (
            TablePlacement("column_wise", (1, 0)),
            TablePlacement("data_parallel", (0, 1)),
            TablePlacement("table_wise", (1,)),
        )
    )
    half = Shard(0, columns=2)
    assert plan_of_placement(workload, placement, 2) == Plan(((half,), (half, Shard(2))), (1,))


@pytest.mark.parametrize(
    ("about", "message"),
    [
        (TablePlacement("table_wise", (8,)), r"tables\[0\]: rank 8, of 8 ranks"),
        (TablePlacement("column_wise", (0, 1, 2)), "64 columns cannot be in 3"),
        (TablePlacement("data_parallel", (0, 1)), "on 2 of 8 ranks"),
        (TablePlacement("table_row_wise", (3, 4)), "beyond the 4 ranks"),
    ],
)
def test_what_ranks_cannot_hold_is_named(about: TablePlacement, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        _of(about)


def test_a_placement_of_other_tables_is_refused() -> None:
    with pytest.raises(WorkloadError, match="it is of 1 tables"):
        plan_of_placement(
            load_workload("lin-dlrm-ddp"), Placement((TablePlacement("table_wise", (0,)),)), 2
        )
