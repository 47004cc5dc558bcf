"""PyTorch's updates of 2020: a call for each distinct row, on one thread."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from perfmodel.designs import deployment_of
from perfmodel.designs.hybrid import Hybrid
from perfmodel.errors import WorkloadError
from perfmodel.hardware import cluster
from perfmodel.lowering import lower
from perfmodel.workload import Workload, load_workload, op_graph
from perfmodel.workload.parts.by_row import LOOKUP_US, ROW_US

MEASURED = Path(__file__).parents[2] / "traces" / "sparse_updates.csv"
BATCH, TABLES = 512, 22
US_PER_TABLE = BATCH * LOOKUP_US + ROW_US
"""Of a table of one row, which all lookups take."""


def one_row_each(update: str) -> Workload:
    changes = {"table__rows": 1, "implementation__sparse_update": update}
    return load_workload("avazu").with_(**changes)


def test_on_cpus_one_thread_adds_each_distinct_row() -> None:
    graph = op_graph(one_row_each("by_row"), BATCH, target="cpu")
    found = [op for op in graph.ops if op.name == "tier::one_thread"]
    taken = [float(op.attributes["measured_us"]) for op in found]
    assert taken == pytest.approx([US_PER_TABLE] * TABLES)
    pieces = lower(graph, "cpu").pieces
    assert not [piece for piece in pieces if piece.direction == "update"]


@pytest.mark.parametrize(("update", "calls", "others"), [("by_row", 22, 0), ("by_lookup", 0, 22)])
def test_in_a_hybrid_the_host_does_so_for_the_whole_batch(
    update: str, calls: int, others: int
) -> None:
    start = deployment_of(one_row_each(update), cluster("hotline-server"), BATCH)
    found = Hybrid().apply(start)
    graph = op_graph(
        found.workload,
        found.batch,
        ranks=found.ranks,
        placement=found.placement,
        pipeline=found.pipeline,
    )
    pieces = list(lower(graph, "cuda").pieces)
    taken = [piece.dims["measured_us"] for piece in pieces if piece.op == "one_thread"]
    assert taken == pytest.approx([US_PER_TABLE] * calls)
    updates = [piece for piece in pieces if piece.direction == "update"]
    assert len([piece for piece in updates if piece.op == "host_embedding_bag"]) == others


def test_it_costs_what_was_measured() -> None:
    rows = pd.read_csv(MEASURED).query("torch == '1.6.0'")
    least = rows.groupby(["dim", "lookups", "distinct"]).cpu_us.min().reset_index()
    assert len(least) == 10
    expected = least.lookups * LOOKUP_US + least.distinct * ROW_US
    assert expected.to_numpy() == pytest.approx(least.cpu_us.to_numpy(), rel=0.2)


def test_another_way_is_refused() -> None:
    with pytest.raises(WorkloadError, match="sparse_update"):
        load_workload("avazu").with_(implementation__sparse_update="by_table")
