"""Ranks with equal work share a class."""

from __future__ import annotations

from perfmodel.workload import Table, Workload, op_graph
from perfmodel.workload.classes import RankClass, decisive, rank_classes
from perfmodel.workload.model import Model

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
    assert decisive([first, second]) == [second]


def test_who_looks_up_most_and_who_sends_most_decide() -> None:
    looks_up, sends, neither = (
        RankClass((0,), 90, 10),
        RankClass((1,), 40, 20),
        RankClass((2,), 9, 9),
    )
    assert decisive([looks_up, sends, neither]) == [looks_up, sends]


def test_ranks_of_a_class_run_the_same_ops() -> None:
    workload = Workload("one large", MODEL, (SMALL, SMALL, LARGE, SMALL))

    def ops(rank: int) -> list[tuple[object, ...]]:
        graph = op_graph(workload, 64, ranks=4, rank=rank)
        return [(op.name, op.inputs, dict(op.attributes)) for op in graph.ops]

    assert ops(0) == ops(3)
    assert ops(0) != ops(2)
