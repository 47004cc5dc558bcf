"""Pooled rows' collectives carry what their sharding says, rank by rank."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from workload.exchange_volumes import volumes

from perfmodel.embedding import Placement, TablePlacement
from perfmodel.ops.graph import OpGraph
from perfmodel.workload import load_workload, op_graph
from perfmodel.workload.tables import Table

RANKS, LINKED, BATCH, DIM = 8, 4, 512, 64
EVERY = tuple(range(RANKS))
WHOLE = (TablePlacement("table_wise", (5,)), TablePlacement("column_wise", (2, 7)))
BY_ROW = (TablePlacement("row_wise", EVERY), TablePlacement("row_wise", EVERY))
BY_NODE = (TablePlacement("table_row_wise", (4, 5, 6, 7)),)


def sent(graph: OpGraph, rank: int) -> dict[str, float]:
    """Bytes of pooled rows and gradients that leave `rank`, by collective."""
    found = {"all_to_all": 0.0, "reduce_scatter": 0.0, "all_gather": 0.0}
    for op in graph.ops:
        about = op.attributes
        if op.name != "record_param_comms" or about["dtype"] != "fp32":
            continue
        ranks = int(about["group_size"])
        if about["collective"] == "all_to_all":
            place = rank // LINKED if ranks < RANKS else rank
            splits = [float(size) for size in about["in_split"].split(",")]
            found["all_to_all"] += 4 * (sum(splits) - splits[place])
        elif about["collective"] == "reduce_scatter":
            found["reduce_scatter"] += 4 * float(about["in_elements"]) * (ranks - 1) / ranks
        elif about["collective"] == "all_gather":
            found["all_gather"] += 4 * float(about["in_elements"]) * (ranks - 1)
    return found


@pytest.mark.parametrize("tables", [WHOLE, BY_ROW, BY_NODE, WHOLE + BY_ROW + BY_NODE])
def test_each_collective_carries_what_its_sharding_says(
    tables: tuple[TablePlacement, ...],
) -> None:
    workload = replace(load_workload("lin-dlrm-ddp"), tables=(Table(5000, DIM, 2.0),) * len(tables))
    workload = workload.with_(interaction__kind="cat", model__bottom_mlp=[64], model__top_mlp=[1])
    placement = Placement(tables)
    expected = volumes(workload, placement, RANKS, BATCH, linked=LINKED)
    for rank in (0, 5, 7):
        graph = op_graph(
            workload, BATCH, ranks=RANKS, rank=rank, linked=LINKED, placement=placement
        )
        for name, sent_bytes in sent(graph, rank).items():
            told = [v.sent_bytes[rank] for v in expected if v.collective == name]
            pooled = [
                v.sent_bytes[rank] for v in expected if v.collective == name and v.phase != "input"
            ]
            assert sent_bytes == pytest.approx(np.sum(pooled)), (rank, name, told)


@pytest.mark.parametrize("keys_of", ["int64", "int32"])
@pytest.mark.parametrize("tables", [WHOLE, BY_ROW, BY_NODE, WHOLE + BY_ROW + BY_NODE])
def test_keys_go_to_every_rank_with_a_part(
    tables: tuple[TablePlacement, ...], keys_of: str
) -> None:
    """Once to each column part; of rows in parts, to each its share."""
    workload = replace(load_workload("lin-dlrm-ddp"), tables=(Table(5000, DIM, 2.0),) * len(tables))
    workload = workload.with_(
        interaction__kind="cat",
        model__bottom_mlp=[64],
        model__top_mlp=[1],
        implementation__name="torchrec",
        implementation__key_dtype=keys_of,
    )
    placement = Placement(tables)
    expected = volumes(workload, placement, RANKS, BATCH, linked=LINKED)
    for rank in (0, 5):
        graph = op_graph(
            workload, BATCH, ranks=RANKS, rank=rank, linked=LINKED, placement=placement
        )
        keys, kinds = 0.0, set()
        for op in graph.ops:
            about = op.attributes
            if op.name == "record_param_comms" and about["dtype"] in ("int32", "int64"):
                splits = [float(size) for size in about["in_split"].split(",")]
                if splits != [3.0] * RANKS:
                    kinds.add(about["dtype"])
                    width = 4 if about["dtype"] == "int32" else 8
                    keys += width * (sum(splits) - splits[rank])
        told = sum(each.sent_bytes[rank] for each in expected if each.phase == "input")
        assert keys == pytest.approx(told)
        assert kinds == {"int32", keys_of}


def test_keys_of_columns_go_to_each_of_their_ranks() -> None:
    """Of two lookups a sample in each of two tables, those in two columns are sent twice, as
    TorchRec permutes them (`features_order`)."""
    tables = (Table(5000, DIM, 2.0),) * 2
    workload = replace(load_workload("lin-dlrm-ddp"), tables=tables)
    placement = Placement((WHOLE[1], WHOLE[1]))
    graph = op_graph(workload, BATCH, ranks=RANKS, linked=LINKED, placement=placement)
    keys = [
        op.attributes
        for op in graph.ops
        if op.name == "record_param_comms"
        and (op.attributes["collective"], op.attributes["dtype"]) == ("all_to_all", "int64")
    ]
    for about in keys:
        assert int(about["in_elements"]) == sum(map(int, about["in_split"].split(",")))
    assert int(keys[-1]["in_elements"]) == 2 * 2 * 2 * BATCH // RANKS


def test_keys_are_ordered_once_and_parted_by_rows() -> None:
    """As TorchRec's `input_dist`: of all kinds of sharding together, then parts of rows, which the
    ranks of nodes take in an order of their own; columns are put side by side, and back."""
    kinds = (WHOLE[0], WHOLE[1], *BY_ROW, *BY_NODE)
    workload = replace(load_workload("lin-dlrm-ddp"), tables=(Table(5000, DIM, 2.0),) * len(kinds))
    workload = workload.with_(
        interaction__kind="cat",
        model__bottom_mlp=[64],
        model__top_mlp=[1],
        implementation__exchange_precision="fp16",
    )
    names = {}
    for own in (kinds, BY_ROW):
        model = replace(workload, tables=workload.tables[: len(own)])
        graph = op_graph(model, BATCH, ranks=RANKS, linked=LINKED, placement=Placement(own))
        names[own] = [op.name.rpartition("::")[2] for op in graph.ops]
    ways = 4
    assert names[kinds].count("block_bucketize_sparse_features") == 2
    assert names[kinds].count("permute_2D_sparse_data") == 1 + 1 + ways
    assert names[kinds].count("permute_pooled_embs_split") == 2
    assert names[kinds].count("clamp") == 2 * ways
    assert names[BY_ROW].count("permute_2D_sparse_data") == 1


def test_gradients_lie_side_by_side_per_rank() -> None:
    """Each rank's columns of the gradient are copied before they are joined. Source: TorchRec,
    comm_ops.py, `_recat_pooled_embedding_grad_out`."""
    tables = (Table(5000, DIM, 2.0),) * RANKS
    workload = replace(load_workload("lin-dlrm-ddp"), tables=tables)
    placement = Placement(tuple(TablePlacement("table_wise", (rank,)) for rank in EVERY))
    graph = op_graph(workload, BATCH, ranks=RANKS, linked=LINKED, placement=placement)
    copied = [op.tensors[0].shape for op in graph.ops if op.name == "aten::clone"]
    assert copied.count((BATCH // RANKS, DIM)) == RANKS
