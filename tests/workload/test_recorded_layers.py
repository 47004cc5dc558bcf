"""Layers cut out of the op graph of a step, and put beside the same tables again, are that step."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from perfmodel.embedding import MicroBatch, Pipeline, Placement, TablePlacement
from perfmodel.errors import WorkloadError
from perfmodel.ops.graph import OpGraph
from perfmodel.ops.read import op_graph as graph_of_trace
from perfmodel.trace import read
from perfmodel.workload import Table, Workload, op_graph
from perfmodel.workload.model import check_workload
from perfmodel.workload.recorded_layers import recorded_layers
from perfmodel.workload.settings import NO_MLPS, Model

TRACES = Path(__file__).parents[2] / "traces"
TABLES = tuple(Table(rows, 32, pooling) for rows, pooling in ((1000, 4), (500, 1), (20, 1)))
PLAIN = Workload("plain", Model(13, (64, 32), (48, 1)), TABLES, batch=96).with_(
    implementation__name="torchrec", training__dense_optimizer="adam"
)
CROSSED = PLAIN.with_(interaction__kind="dcn_v2", interaction__rank=8)


def carried(workload: Workload, *, train: bool = True) -> Workload:
    """The same with its layers as they are recorded in a step on one rank."""
    layers = recorded_layers(op_graph(workload, train=train))
    return replace(workload, model=NO_MLPS, recorded=layers)


def lines(graph: OpGraph) -> list[str]:
    """What is called, on what, by what."""
    depth: list[int] = []
    told = []
    for op in graph.ops:
        depth.append(depth[op.parent] + 1 if op.parent >= 0 else 0)
        on = " ".join(f"{x.dtype}{x.shape}{x.strides}" for x in op.tensors)
        told.append(f"{depth[-1]} {op.name} {op.phase} {op.thread} {sorted(op.attributes)} {on}")
    return told


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("batch", [48, 96, 192])
@pytest.mark.parametrize("workload", [PLAIN, CROSSED], ids=["dot", "dcn_v2"])
def test_carried_layers_are_the_layers(workload: Workload, batch: int, ranks: int) -> None:
    other = carried(workload)
    for train in (True, False):
        expected = op_graph(workload, batch, ranks=ranks, train=train)
        found = op_graph(other, batch, ranks=ranks, train=train)
        assert lines(found) == lines(expected)
        assert len(found.data) == pytest.approx(len(expected.data), rel=0.02)


def test_a_pipeline_of_micro_batches_carries_them_too() -> None:
    """A quarter of the samples, then the others: gradients are added up, and summed once."""
    placed = Placement(tuple(TablePlacement("table_wise", (rank,)) for rank in range(3)))
    parts = MicroBatch(0.25), MicroBatch(0.75)
    for pipeline in (Pipeline(micro_batches=parts), Pipeline(input_ahead=True)):
        expected, found = (
            op_graph(each, 96, ranks=3, placement=placed, pipeline=pipeline)
            for each in (PLAIN, carried(PLAIN))
        )
        assert lines(found) == lines(expected)


def test_layers_go_to_other_processes() -> None:
    other = carried(PLAIN)
    assert lines(op_graph(pickle.loads(pickle.dumps(other)))) == lines(op_graph(other))


def test_layers_run_on_another_target() -> None:
    expected, found = (op_graph(each, target="cpu") for each in (PLAIN, carried(PLAIN)))
    assert {x.device for op in found.ops for x in op.tensors} == {"cpu"}
    assert [op.name for op in found.ops if op.phase == "forward"] == [
        op.name for op in expected.ops if op.phase == "forward"
    ]


def test_layers_of_several_ranks_have_no_exchange_in_them() -> None:
    alone, among = (recorded_layers(op_graph(PLAIN, 96 * ranks, ranks=ranks)) for ranks in (1, 3))
    assert not [op.name for op in (*among.forward, *among.backward) if "c10d" in op.name]
    assert (among.batch, among.parameter_elements) == (96, alone.parameter_elements)
    assert among.parameter_elements == PLAIN.dense_parameters
    assert [each.shape for each in among.inputs] == [(96, 13)]
    assert [each.shape for each in among.labels] == [(96,)]


def test_sizes_at_another_batch() -> None:
    """Inputs and rows grow with it, parameters do not; back again is as before."""
    layers = recorded_layers(op_graph(PLAIN))
    double = layers.at(192)
    assert [each.shape for each in double.rows] == [(192, 3 * 32)]
    assert [each.shape for each in double.row_gradients] == [(192, 3 * 32)]
    assert [x.shape for x in double.gradients] == [x.shape for x in layers.gradients]
    assert double.input_elements == layers.input_elements == 13 + 1
    assert double.at(96).forward == layers.forward


def test_layers_of_a_captured_trace() -> None:
    """By its description: 64-256-128-64, then 64 + 9 * 8 / 2 = 100 values, 100-256-128-1."""
    layers = recorded_layers(graph_of_trace(read(TRACES / "cpu_dlrm_2rank"))[0])
    widths = [(64, 256), (256, 128), (128, 64), (100, 256), (256, 128), (128, 1)]
    assert layers.parameter_elements == sum((k + 1) * n for k, n in widths)
    assert layers.batch == 512
    assert [each.shape for each in layers.inputs] == [(512, 64)]
    assert [each.shape for each in layers.labels] == [(512,)]
    assert len(layers.parameters) == len(layers.gradients) == 12


def test_layers_of_a_published_trace(reference: Path) -> None:
    """Ids of tensors and storages that were freed come back there as those of others."""
    path = reference / "execution_graphs" / "dlrm_default_1024_et_v1.0.0.json.gz"
    layers = recorded_layers(graph_of_trace(read(path))[0])
    assert [each.shape for each in layers.rows] == [(1024, 8 * 64)]
    assert [each.shape for each in layers.row_gradients] == [(1024, 8 * 64)]
    # 512-512-64, then 64 + 9 * 8 / 2 = 100 values, 100-1024-1024-1024-1
    widths = [(512, 512), (512, 64), (100, 1024), (1024, 1024), (1024, 1024), (1024, 1)]
    assert layers.parameter_elements == sum((k + 1) * n for k, n in widths)


def test_layers_may_have_no_parameters() -> None:
    """Rows alone are trained, and no gradient is summed."""
    layers = recorded_layers(op_graph(PLAIN))
    bare = replace(layers, parameters=(), gradients=(), gradients_at=())
    names = [op.name for op in op_graph(replace(PLAIN, model=NO_MLPS, recorded=bare)).ops]
    assert any("backward_codegen" in name for name in names)
    assert "c10d::allreduce_" not in names


def test_what_cannot_be_cut_is_told() -> None:
    layers = recorded_layers(op_graph(PLAIN, train=False))
    forward = replace(PLAIN, model=NO_MLPS, recorded=layers)
    assert op_graph(forward, train=False).ops
    with pytest.raises(WorkloadError, match="plain: recorded without a backward pass"):
        op_graph(forward)
    with pytest.raises(WorkloadError, match="model is missing"):
        check_workload(replace(PLAIN, model=NO_MLPS), "mine")
    with pytest.raises(WorkloadError, match="leave model"):
        check_workload(replace(PLAIN, recorded=layers), "mine")
    single = tuple(replace(table, pooled=False) for table in TABLES)
    with pytest.raises(WorkloadError, match="one by one to recorded layers alone"):
        check_workload(replace(PLAIN, tables=single), "mine")
