"""HugeCTR's step: what travels, what waits for what, how many rows are touched."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfmodel.hardware import cluster, load
from perfmodel.lowering import lower
from perfmodel.ops.graph import OpGraph
from perfmodel.prediction import predict
from perfmodel.prediction.step import Step
from perfmodel.workload import Table, load_workload, op_graph
from perfmodel.workload.hugectr_hybrid import split_of
from perfmodel.workload.sharding import own_placement, plan
from perfmodel.workload.step import Run


def collectives(graph: OpGraph, kind: str) -> list[dict[str, str]]:
    return [
        dict(op.attributes)
        for op in graph.ops
        if op.name == "record_param_comms" and op.attributes["collective"] == kind
    ]


def test_rows_that_come_with_a_key_are_as_many_as_its_keys() -> None:
    """A batch that always names one key of many touches `pooling` rows, evenly drawn."""
    table = Table(10**6, 8, 10, alpha=9.0, key_rows=10**6)
    assert table.unique_rows(1000) == pytest.approx(
        10 * Table(10**6, 8, alpha=9.0).unique_rows(1000), 0.01
    )
    assert table.unique_rows(1000) < 40 < Table(10**6, 8, 10).unique_rows(1000)


def test_frequent_and_other_vectors_are_all() -> None:
    workload = load_workload("dlrm-mlperf")
    run = Run(workload, 6912, 8, 0, "cuda", True, plan(workload, 8), 8, own_placement(workload, 8))
    found = split_of(run)
    assert found.frequent_vectors + found.other_vectors == pytest.approx(26)
    assert found.other_unique_rows <= found.other_vectors * run.global_batch


def test_of_one_node_no_row_is_in_the_all_reduce() -> None:
    """Owners of frequent rows fetch their sums; between nodes the sums join the dense gradients."""
    workload = load_workload("dlrm-mlperf")
    one, two = (op_graph(workload, 8192, ranks=16, linked=linked) for linked in (16, 8))
    (alone,), (joined,) = (collectives(graph, "all_reduce") for graph in (one, two))
    frequent = split_of(
        Run(workload, 512, 16, 0, "cuda", True, plan(workload, 16), 8, own_placement(workload, 16))
    ).frequent_rows
    more = int(joined["in_elements"]) - int(alone["in_elements"])
    assert more == frequent * workload.dim
    assert [len(collectives(graph, "all_to_all")) for graph in (one, two)] == [4, 2]


def test_rows_are_frequent_from_the_threshold_of_its_source_on() -> None:
    """A rank names the rarest of them twice in 3 % of its batches: p^2 batch^2 / 2."""
    workload = load_workload("dlrm-mlperf")
    found = split_of(
        Run(workload, 6912, 8, 0, "cuda", True, plan(workload, 8), 8, own_placement(workload, 8))
    )
    least = (2 * 0.03) ** 0.5 / 6912
    count = 0.0
    for table in workload.tables:  # Zipf, as an integral over ranks
        power = 1 - table.alpha
        norm = (1 - (table.rows + 1) ** power) / -power
        count += min((least * norm) ** (-1 / table.alpha), table.rows)
    assert found.frequent_rows == pytest.approx(count, rel=5e-3)
    assert found.frequent_unique_rows < found.frequent_rows


@pytest.mark.parametrize("dtype", ["fp32", "fp8", "int8"])
def test_rows_travel_in_any_precision(dtype: str) -> None:
    workload = load_workload("dlrm-mlperf").with_(implementation__exchange_precision=dtype)
    graph = op_graph(workload, 8192, ranks=8)
    assert {each["dtype"] for each in collectives(graph, "all_to_all")} == {dtype}


def test_evaluations_bring_no_frequent_rows() -> None:
    graph = op_graph(load_workload("dlrm-mlperf"), 8192, ranks=8, train=False)
    assert len(collectives(graph, "all_to_all")) == 1


def test_between_nodes_an_exchange_takes_one_rank_of_each() -> None:
    graph = op_graph(load_workload("dlrm-dcnv2"), 2048, ranks=16, linked=8)
    exchanges = collectives(graph, "all_to_all")
    assert [(each["group_size"], each["nodes"]) for each in exchanges] == [("2", "2")] * 2
    sums = collectives(graph, "reduce_scatter") + collectives(graph, "all_gather")
    assert [each["group_size"] for each in sums] == ["8", "8"]
    assert collectives(graph, "all_reduce")[0]["in_network"] == "1"


@pytest.mark.parametrize("name", ["dlrm-dcnv2", "dlrm-mlperf", "torchrec-golden"])
def test_kernels_wait_for_what_comes_from_other_ranks(name: str) -> None:
    """Each exchange of rows, forward and backward, has a kernel that reads its result."""
    device = cluster(load("dgx-h100")).node.device
    graph = op_graph(load_workload(name), 2048, ranks=8)
    lowered = lower(graph, "cuda", device=device)
    needs = lowered.waits_for
    assert needs is not None
    read = {producer for producers in needs.values() for producer in producers}
    rows = [
        index
        for index, op in enumerate(graph.ops)
        if op.name == "record_param_comms" and op.attributes["collective"] == "all_to_all"
        if op.phase != "input"
    ]
    assert len(rows) >= 2
    assert read.issuperset(rows)


def test_a_graph_holds_the_layers_and_not_the_collection() -> None:
    lowered = lower(op_graph(load_workload("dlrm-dcnv2"), 2048, ranks=8), "cuda")
    ops = lowered.graph.ops
    alone = {op.name for op in ops if op.attributes.get("graph") == "none"}
    assert {"hugectr::network_forward", "hugectr::row_gradients", "record_param_comms"} <= alone
    assert not alone & {"aten::mm", "aten::addcmul", "hugectr::multi_cross_products"}
    hybrid = op_graph(load_workload("dlrm-mlperf"), 2048, ranks=8)
    assert not any("graph" in op.attributes for op in hybrid.ops)


def test_a_step_takes_longer_on_fewer_devices() -> None:
    node = cluster(load("dgx-h100")).node
    parts = [replace(node, gpus=gpus) for gpus in (4, 8)]
    four, eight = predict("dlrm-dcnv2", hardware=parts, batch=32768).results
    assert four.step_us > eight.step_us


@pytest.mark.parametrize(("name", "sums"), [("dlrm-dcnv2", "4"), ("torchrec-golden", None)])
def test_groups_are_nodes_also_where_links_join_more(name: str, sums: str | None) -> None:
    """Of 4 trays of one NVLink domain HugeCTR sums within each; TorchRec takes all as linked."""
    machine = cluster(load("gb200-nvl72"), 4)
    workload = load_workload(name)
    step = Step(workload, machine, 2048, True)
    assert step.linked == (int(sums) if sums else machine.linked_gpus)
    found = collectives(step.graph(0), "reduce_scatter")
    assert [each["group_size"] for each in found] == ([sums] if sums else [])
