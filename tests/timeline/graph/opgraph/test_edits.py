"""Edits: ops removed, fused, of another type, updated otherwise."""

from __future__ import annotations

from collections import Counter

import pytest
from opgraph_nodes import TRACES, Et, tensor

from perfmodel.errors import WorkloadError
from perfmodel.ops.edits import cast, cuda_graphs, remove
from perfmodel.ops.graph import OpGraph
from perfmodel.ops.read import op_graph
from perfmodel.trace import read


def chain() -> OpGraph:
    """a -> mm -> relu -> sigmoid -> sum."""
    et = Et()
    x, y, z, s = (tensor(i, 4, 4) for i in (1, 3, 4, 5))
    et.add("aten::mm", [x, tensor(2, 4, 4)], [y])
    relu = et.add("aten::relu", [y], [z])
    et.add("aten::clamp_min", [y, 0], [z], at=relu)
    et.add("aten::sigmoid", [z], [s])
    et.add("aten::sum", [s], [tensor(6)])
    return et.graph()


def dlrm() -> OpGraph:
    return op_graph(read(TRACES / "dlrm_batch8_et.json.gz"))[0]


def names(graph: OpGraph) -> list[str]:
    return [graph.ops[at].name.removeprefix("aten::") for at in graph.top_level()]


def edges(graph: OpGraph) -> set[tuple[str, str]]:
    return {(graph.ops[a].name[6:], graph.ops[b].name[6:]) for a, b in graph.data.tolist()}


def test_remove_takes_what_it_calls_and_joins_what_remains() -> None:
    graph, skipped = remove(chain(), "aten::relu")
    assert names(graph) == ["mm", "sigmoid", "sum"]
    assert len(graph) == 3
    assert not skipped
    assert ("mm", "sigmoid") in edges(graph)


def test_remove_of_nothing_says_so() -> None:
    graph = chain()
    found = remove(graph, "aten::gelu")
    assert found.graph is graph
    assert found.skipped == ("no op is called aten::gelu",)


def test_unknown_types_are_refused() -> None:
    with pytest.raises(WorkloadError, match="one of"):
        cast(chain(), "nothing")


def test_cast_changes_floating_types_only() -> None:
    graph = dlrm()
    found = cast(graph, "bf16").graph
    was = Counter(t.dtype for op in graph.ops for t in op.tensors)
    now = Counter(t.dtype for op in found.ops for t in op.tensors)
    assert now["bf16"] == was["fp32"]
    assert now["int64"] == was["int64"]
    assert not now["fp32"]
    kept = cast(graph, "bf16", optimizer=False)
    assert kept.skipped
    assert any(t.dtype == "fp32" for op in kept.graph.ops for t in op.tensors)
    narrow = cast(graph, "fp8")
    types = {t.dtype for op in narrow.graph.ops if op.name == "aten::addmm" for t in op.tensors}
    assert types == {"fp8"}
    assert narrow.skipped


def test_cuda_graphs_name_what_they_cannot_hold() -> None:
    et = Et()
    et.add("aten::item", [tensor(1)])
    et.add("torch::cuda::synchronize", [tensor(1)])
    graph, skipped = cuda_graphs(et.graph())
    assert graph.cuda_graphs
    assert skipped == tuple(
        f"1 calls of {name} wait for the device: a CUDA graph cannot hold them"
        for name in ("aten::item", "torch::cuda::synchronize")
    )
