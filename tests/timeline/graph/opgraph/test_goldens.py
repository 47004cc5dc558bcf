"""Op graphs of real traces: as many ops, phases and shapes as the files hold."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from perfmodel.errors import TraceError
from perfmodel.ops.graph import BACKWARD, FORWARD, OPTIMIZER, OpGraph, tensors_in
from perfmodel.ops.read import op_graph
from perfmodel.trace import read

ROOT = Path(__file__).parents[4]
EVALUATE = "autograd::engine::evaluate_function"


def outermost(graph: OpGraph) -> Counter[str]:
    return Counter(graph.ops[index].phase for index in graph.top_level())


@pytest.mark.parametrize(
    ("file", "ops", "top", "backward"),
    [
        ("execution_graphs/dlrm_default_1024_et_v1.0.0.json.gz", 514, 113, 46),
        ("execution_graphs/alexnet_et_2023.json.gz", 392, 109, 47),
        ("traces/dlrm_v100x8/et_rank0.json.gz", 1633, 484, 101),
        ("traces/et_only/resnet_1gpu_1.1.1-chakra.0.0.4.json.gz", 14346, 3192, 1998),
    ],
)
def test_counts(reference: Path, file: str, ops: int, top: int, backward: int) -> None:
    graph = op_graph(read(reference / file))[0]
    assert (len(graph), len(list(graph.top_level()))) == (ops, top)
    found = outermost(graph)
    assert found[BACKWARD] == backward
    assert backward >= sum(graph.ops[at].name.startswith(EVALUATE) for at in graph.top_level())
    assert found[FORWARD]
    assert found[OPTIMIZER]


def test_shapes_are_the_files(reference: Path) -> None:
    trace = read(reference / "traces/dlrm_v100x8/et_rank0.json.gz")
    (et,) = trace.execution_traces.values()
    graph = op_graph(trace)[0]
    rows = [row for row in range(len(et)) if et.scope[row] != 7]
    for row, op in zip(rows, graph.ops, strict=True):
        assert op.name == et.text(row)
        given = et.input_shapes(row)
        for shape, argument, kind in zip(given, op.inputs, et.input_types(row), strict=True):
            if kind == "Tensor(float)":
                assert [list(t.shape) for t in tensors_in(argument)] == [shape]


def test_top_level_ops_are_those_of_the_links(reference: Path) -> None:
    trace = read(reference / "traces/dlrm_meta/a100x8_trace_diff_control.json.gz")
    (graph,) = op_graph(trace)
    events = sorted(graph.ops[at].event for at in graph.top_level())
    assert events == sorted(trace.links[0].top_ops.tolist())


def test_pairs_join_ids_steps_and_events(reference: Path) -> None:
    graphs = op_graph(read(reference / "traces/dlrm_v100x8"))
    assert [graph.rank for graph in graphs] == [0, 1, 2, 3]
    for graph in graphs:
        assert graph.world_size == 8
        assert min(op.event for op in graph.ops) >= 0
        ided = sum(t.tensor_id >= 0 for op in graph.ops for t in op.tensors)
        assert ided > 1800
        assert len(graph.data) > 1000
        assert (graph.data[:, 0] != graph.data[:, 1]).all()
        collectives = Counter(
            op.attributes["collective"] for op in graph.ops if op.name == "record_param_comms"
        )
        assert collectives["all_to_all"] == 5
        assert collectives["all_reduce"] == 3


def test_profile_and_execution_trace_of_one_run_agree() -> None:
    folder = ROOT / "traces/cpu_dlrm_truth/one_rank_base"
    (paired,) = op_graph(read(folder))
    (alone,) = op_graph(read(folder / "trace_kineto.json.gz"))
    (traced,) = op_graph(read(folder / "trace_et.json.gz"))
    for graph in (alone, traced):
        assert [op.name for op in graph.ops] == [op.name for op in paired.ops]
        assert [op.phase for op in graph.ops] == [op.phase for op in paired.ops]
        assert [op.parent for op in graph.ops] == [op.parent for op in paired.ops]
        assert [op.step for op in graph.ops] == [op.step for op in paired.ops]
    np.testing.assert_array_equal(traced.data, paired.data)
    differ = {
        one.name
        for one, other in zip(alone.ops, traced.ops, strict=True)
        if [t.shape for t in one.tensors] != [t.shape for t in other.tensors]
    }
    assert differ <= {"aten::index", "aten::_index_put_impl_", "aten::index_put_"}, (
        "profiles leave out optional tensors in lists alone"
    )


def test_missing_shapes_are_one_line(reference: Path) -> None:
    with pytest.raises(TraceError, match="359 of 359 ops lack shapes"):
        op_graph(read(reference / "traces/critical_path/a100_alexnet.json.gz"))
