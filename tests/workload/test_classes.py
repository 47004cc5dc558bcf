"""Ranks with equal work share a class."""

from __future__ import annotations

import pytest

from perfmodel.embedding import Placement, RowCache, TablePlacement
from perfmodel.workload import Table, Workload, op_graph
from perfmodel.workload.settings import Model
from perfmodel.workload.step import RankClass, deciding_classes, rank_classes

MODEL = Model(4, (16,), (8, 1))
SMALL, LARGE = Table(100, 16, 1), Table(100, 16, 10)


def test_equal_tables_make_one_class() -> None:
    (found,) = rank_classes(Workload("equal", MODEL, (SMALL,) * 8), 4)
    assert found.ranks == (0, 1, 2, 3)
    assert (found.looked_up, found.pooled) == (2 * 16, 2 * 16)


def test_the_rank_with_more_lookups_is_apart() -> None:
    tables = (SMALL, SMALL, LARGE, SMALL)
    first, second = rank_classes(Workload("one large", MODEL, tables), 4)
    assert (first.ranks, second.ranks) == ((0, 1, 3), (2,))
    assert second.looked_up > first.looked_up
    assert deciding_classes([first, second]) == [second]


def test_who_looks_up_most_and_who_sends_most_decide() -> None:
    looks_up, sends, neither = (
        RankClass((0,), 90, 10),
        RankClass((1,), 40, 20),
        RankClass((2,), 9, 9),
    )
    assert deciding_classes([looks_up, sends, neither]) == [looks_up, sends]


def test_who_reads_most_rows_beside_the_device_decides_as_well() -> None:
    """A rank of few lookups whose table no cache holds, beside one of many in a small table."""
    looks_up, misses = Table(1_000, 16, 20), Table(10_000_000, 16, 1)
    workload = Workload("unlike", MODEL, (looks_up, misses))
    cache = RowCache("rows", "hbm", 1e6)
    tables = tuple(TablePlacement("table_wise", (n,), "host", caches=("rows",)) for n in (0, 1))
    first, second = rank_classes(workload, 2, 2, Placement(tables, (cache,)), batch=4096)
    assert first.beside == pytest.approx(1_000 * 16)
    assert second.beside == misses.unique_rows(4096) * 16 > first.beside
    assert deciding_classes([first, second]) == [first, second]
    on_device = Placement(tuple(TablePlacement("table_wise", (n,)) for n in (0, 1)))
    assert len(deciding_classes(rank_classes(workload, 2, 2, on_device))) == 1


def test_ranks_of_a_class_run_the_same_ops() -> None:
    workload = Workload("one large", MODEL, (SMALL, SMALL, LARGE, SMALL))

    def ops(rank: int) -> list[tuple[object, ...]]:
        graph = op_graph(workload, 64, ranks=4, rank=rank)
        return [(op.name, op.inputs, dict(op.attributes)) for op in graph.ops]

    assert ops(0) == ops(3)
    assert ops(0) != ops(2)
