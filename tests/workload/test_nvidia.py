"""NVIDIA's examples: ranks that differ meet at the same collectives."""

from __future__ import annotations

from collections import Counter

import pytest

from perfmodel.graph.ops import OpGraph
from perfmodel.workload import load_workload, op_graph


def collectives(graph: OpGraph) -> list[str]:
    return [op.attributes["collective"] for op in graph.ops if op.name == "record_param_comms"]


@pytest.mark.parametrize("train", [True, False])
def test_all_ranks_call_the_same_collectives(train: bool) -> None:
    workload = load_workload("nvidia-dlrm-large")
    called = [
        collectives(op_graph(workload, 1024, ranks=8, rank=rank, train=train)) for rank in range(8)
    ]
    assert all(each == called[0] for each in called)
    assert called[0] == (["all_to_all"] * 2 + ["all_reduce"] if train else ["all_to_all"])


def test_the_first_rank_runs_the_bottom_mlp_for_all() -> None:
    """Three layers below, five above; each product once forward, twice backward but for the first
    layer's input."""
    workload = load_workload("nvidia-dlrm-large")
    products = [
        Counter(
            op.tensors[0].shape[0]
            for op in op_graph(workload, 1024, ranks=8, rank=rank).ops
            if op.name == "aten::mm" and op.phase == "forward"
        )
        for rank in (0, 1)
    ]
    assert products == [{1024: 3, 128: 5}, {128: 5}]
