"""Placements and pipelines: what cannot be is refused, edits keep the rest."""

from __future__ import annotations

import pytest

from perfmodel.embedding import MicroBatch, Pipeline, Placement, RowCache, TablePlacement
from perfmodel.errors import WorkloadError

TWO = Placement((TablePlacement("table_wise", (0,)), TablePlacement("row_wise", (0, 1))))


def test_edits_keep_what_they_do_not_name_and_add_caches() -> None:
    cache = RowCache("rows", "hbm", 1e9)
    cached = TWO.edited(
        lambda number, table: {"tier": "host", "caches": ("rows",)} if number else {},
        caches=(cache,),
    )
    assert cached.tables[0] == TWO.tables[0]
    assert (cached.tables[1].sharding, cached.tables[1].tier) == ("row_wise", "host")
    assert cached.cache("rows") is cache


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: TablePlacement("table_wise", (0, 1)), "table_wise on 2 ranks"),
        (lambda: TablePlacement("row_wise", (1, 1)), "one shard each"),
        (lambda: TablePlacement("row_wise", ()), "one shard each"),
        (lambda: Placement((TablePlacement("table_wise", (0,), caches=("a",)),)), "'a' is not"),
        (lambda: Placement((), (RowCache("a", "hbm", 1), RowCache("a", "host", 1))), "two caches"),
        (lambda: RowCache("a", "hbm", 0), "capacity of 0 bytes"),
        (lambda: Pipeline((MicroBatch(0.5),)), "0.5 of the batch"),
        (lambda: MicroBatch(1.5), "a share of 1.5"),
    ],
)
def test_what_cannot_be_is_refused(make: object, says: str) -> None:
    with pytest.raises(WorkloadError, match=says):
        make()  # type: ignore[operator]
