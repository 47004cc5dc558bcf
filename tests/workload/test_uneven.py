"""Ranks without tables, and ranks with unequal batches."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.embedding import Placement, TablePlacement
from perfmodel.ops.graph import OpGraph
from perfmodel.workload import Table, Workload, op_graph
from perfmodel.workload.eager.recorder import shares
from perfmodel.workload.memory_tiers import memory_use
from perfmodel.workload.settings import Implementation, Model, Training, implementation_names
from perfmodel.workload.sharding import plan

DIM = 4
SMALL = Workload("small", Model(4, (8, DIM), (3, 1)), (Table(10, DIM, 3), Table(20, DIM, 3)))
PYTORCH = ("pytorch", "reference", "fbgemm")


def exchanges(graph: OpGraph) -> list[tuple[list[int], list[int]]]:
    """Of each all-to-all what goes to each rank, and what comes from each."""
    found = [op.attributes for op in graph.ops if op.name == "record_param_comms"]
    found = [it for it in found if it["collective"] == "all_to_all"]
    sides = ("in_split", "out_split")
    return [tuple([int(n) for n in it[side].split(",")] for side in sides) for it in found]


def by(name: str) -> Workload:
    return replace(SMALL, training=Training(), implementation=Implementation(name=name))


@pytest.mark.parametrize("name", [it for it in implementation_names() if it != "hstu"])
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("batch", [9, 10, 2])
def test_every_rank_of_more_ranks_than_tables_has_a_step(
    name: str, train: bool, batch: int
) -> None:
    for rank in range(3):
        assert len(op_graph(by(name), batch, ranks=3, rank=rank, train=train))


@pytest.mark.parametrize("name", PYTORCH)
def test_a_rank_without_tables_receives_rows_and_sends_none(name: str) -> None:
    """9 samples on 3 ranks: 3 each, so 3 x 4 elements from each of the two that have a table."""
    first = exchanges(op_graph(by(name), 9, ranks=3, rank=2))[0]
    assert first == ([0, 0, 0], [12, 12, 0])
    assert exchanges(op_graph(by(name), 9, ranks=3, rank=0))[0] == ([12, 12, 12], [12, 12, 0])


@pytest.mark.parametrize("name", PYTORCH)
def test_the_step_is_of_a_rank_with_one_sample_more(name: str) -> None:
    """7 samples on 2 ranks: 4 and 3. The rank's table is looked up for all 7, of which 4 x 4 and
    3 x 4 elements go out; its own 4 samples get 4 x 4 elements from each."""
    graph = op_graph(by(name), 7, ranks=2)
    assert exchanges(graph)[0] == ([16, 12], [16, 16])
    assert all(op.inputs[1].shape[0] == 4 for op in graph.ops if op.name == "aten::addmm")


def test_fewer_samples_than_ranks_are_looked_up_once_each() -> None:
    """2 samples on 8 ranks: 1 on those that have any; 2 x 3 rows of a table, not 8 x 3."""
    graph = op_graph(by("reference"), 2, ranks=8)
    (bag,) = [op for op in graph.ops if op.name == "aten::embedding_bag"]
    assert bag.inputs[1].shape == (6,)


@pytest.mark.parametrize("sharding", ["row_wise", "table_row_wise", "table_wise"])
def test_partial_sums_of_unequal_batches(sharding: str) -> None:
    """13 samples on 4 ranks: what is scattered and gathered holds the rank's 4."""
    ranks = {"row_wise": (0, 1, 2, 3), "table_row_wise": (0, 1), "table_wise": (0,)}[sharding]
    placement = Placement((TablePlacement(sharding, ranks),) * 2)  # type: ignore[arg-type]
    for rank in range(4):
        graph = op_graph(by("torchrec"), 13, ranks=4, rank=rank, linked=2, placement=placement)
        assert memory_use(graph) is not None
        assert any(op.name == "aten::addmm" and op.inputs[1].shape[0] == 4 for op in graph.ops)


@given(st.integers(0, 1000), st.integers(1, 70))
def test_shares_are_even_and_add_up(count: int, ranks: int) -> None:
    found = shares(count, ranks)
    assert sum(found) == count
    assert max(found) - min(found) <= 1


@given(st.integers(1, 60), st.integers(1, 40))
def test_every_table_is_held_once_whatever_the_ranks(tables: int, ranks: int) -> None:
    workload = replace(by("torchrec"), tables=(Table(10, DIM, 3),) * tables)
    held = [shard.table for own in plan(workload, ranks).shards for shard in own]
    assert sorted(held) == list(range(tables))
