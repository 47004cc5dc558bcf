"""A model small enough to count its ops by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel import predict
from perfmodel.errors import WorkloadError
from perfmodel.ops.graph import NO_OP, OpGraph
from perfmodel.workload import Table, Workload, op_graph
from perfmodel.workload.settings import Implementation, Interaction, Model, Training
from perfmodel.workload.step import BESIDE_MODEL, NO_HOST_OPS

SMALL = Workload("small", Model(4, (8, 2), (3, 1)), (Table(10, 2, 3), Table(20, 2, 3)), batch=6)
"""Layers 4-8-2 below, two tables of dim 2, dot of 3 vectors (3 pairs), layers 5-3-1 above."""


def shapes(graph: OpGraph, name: str) -> list[tuple[tuple[int, ...], ...]]:
    return [tuple(t.shape for t in op.tensors) for op in graph.ops if op.name == name]


def test_matrix_products_have_the_shapes_of_the_layers() -> None:
    graph = op_graph(SMALL)
    assert shapes(graph, "aten::addmm") == [
        ((8,), (6, 4), (4, 8)),
        ((2,), (6, 8), (8, 2)),
        ((3,), (6, 5), (5, 3)),
        ((1,), (6, 3), (3, 1)),
    ]
    assert shapes(graph, "aten::mm") == [
        ((6, 1), (1, 3)),
        ((1, 6), (6, 3)),
        ((6, 3), (3, 5)),
        ((3, 6), (6, 5)),
        ((6, 2), (2, 8)),
        ((2, 6), (6, 8)),
        ((8, 6), (6, 4)),
    ], "two per layer, but one for the first, whose input needs no gradient"
    assert shapes(graph, "aten::bmm")[0] == ((6, 3, 2), (6, 2, 3))


def test_ops_beside_the_model_are_of_training_on_a_gpus_host() -> None:
    """The host decides a step this small: 100 more such ops take as long as the first 100."""
    asked = SMALL.with_(training__host_ops=100)
    names = Counter(op.name for op in op_graph(asked).ops)
    assert names[BESIDE_MODEL] == 100
    assert len(op_graph(asked, train=False)) == len(op_graph(SMALL, train=False))
    on_cpu = op_graph(asked, target="cpu")
    assert (len(on_cpu), on_cpu.notes) == (len(op_graph(SMALL, target="cpu")), (NO_HOST_OPS,))
    none, some, more = (
        predict(SMALL.with_(training__host_ops=count), hardware="h100-sxm").results[0].step_us
        for count in (0, 100, 200)
    )
    assert some - none == pytest.approx(more - some)
    assert some > none + 100.0
    waiting = predict(SMALL.with_(training__waited_us=9e3), hardware="h100-sxm").results[0]
    assert waiting.step_us == pytest.approx(none + 9e3)  # host and device, at the same time


def test_each_part_of_the_step_is_there() -> None:
    graph = op_graph(SMALL)
    count = Counter(op.name for op in graph.ops)
    assert count["aten::embedding_bag"] == count["EmbeddingBagBackward0"] == 2
    assert count["aten::relu"] == count["ReluBackward0"] == 3
    assert count["torch::autograd::AccumulateGrad"] == 4 * 2 + 2
    assert {op.phase for op in graph.ops} == {"input", "forward", "backward", "optimizer"}
    assert {op.thread for op in graph.ops if op.phase == "backward"} == {"autograd"}


def test_inference_is_the_forward_pass_alone() -> None:
    graph = op_graph(SMALL, train=False)
    assert {op.phase for op in graph.ops} == {"input", "forward"}
    assert not any("ackward" in op.name or "loss" in op.name for op in graph.ops)
    forward = [op.name for op in op_graph(SMALL).ops if op.name == "aten::addmm"]
    assert [op.name for op in graph.ops if op.name == "aten::addmm"] == forward


def test_lookups_are_carried_on_the_embedding_ops() -> None:
    graph = op_graph(SMALL)
    op = next(op for op in graph.ops if op.name == "aten::_embedding_bag")
    lookups = 6 * 3
    assert float(op.attributes["hash_size"]) == 10
    assert float(op.attributes["lookups"]) == lookups
    assert float(op.attributes["unique_rows"]) == pytest.approx(10 * (1 - 0.9**lookups))


def test_autocast_casts_each_operand_and_its_gradient_back() -> None:
    graph = op_graph(SMALL.with_(implementation__precision="bf16"))
    products = [op for op in graph.ops if op.name in ("aten::addmm", "aten::mm")]
    assert {t.dtype for op in products for t in op.tensors} == {"bf16"}
    assert sum(op.name == "ToCopyBackward0" for op in graph.ops) >= 8


def test_optimizer_styles() -> None:
    def optimizer(style: str, name: str = "sgd") -> list[str]:
        changes = {"implementation__optimizer_style": style, "training__dense_optimizer": name}
        ops = op_graph(SMALL.with_(**changes)).ops
        return [op.name for op in ops if op.phase == "optimizer" and op.parent == NO_OP]

    assert optimizer("loop").count("aten::add_") == 4 * 2 + 2
    assert optimizer("foreach")[0] == "aten::_foreach_add_"
    assert optimizer("fused", "adam")[0] == "aten::_fused_adam_"
    assert optimizer("loop", "adagrad")[:2] == ["aten::addcmul_", "aten::sqrt"]


def test_cross_layers_are_low_rank_products() -> None:
    workload = Workload(
        "cross",
        SMALL.model,
        SMALL.tables,
        6,
        Interaction("dcn_v2", layers=2, rank=3),
        Training("bce_with_logits"),
    )
    graph = op_graph(workload)
    down = ((6, 6), (6, 3))
    assert shapes(graph, "aten::mm")[:2] == [down, down]
    assert ((6,), (6, 3), (3, 6)) in shapes(graph, "aten::addmm")
    assert shapes(graph, "aten::mul")[:1] == [((6, 6), (6, 6))]


@given(st.integers(1, 12), st.sampled_from(["pytorch", "reference", "fbgemm", "torchrec"]))
def test_ops_grow_by_the_same_number_with_each_table(tables: int, software: str) -> None:
    def length(count: int) -> int:
        workload = Workload(
            "growing",
            SMALL.model,
            (Table(10, 2, 3),) * count,
            6,
            implementation=Implementation(software),  # type: ignore[arg-type]
        )
        return len(op_graph(workload))

    assert length(tables + 2) - length(tables + 1) == length(3) - length(2)


@given(st.integers(1, 40), st.integers(1, 9), st.booleans())
def test_graphs_are_well_formed(batch: int, pooling: int, train: bool) -> None:
    workload = SMALL.with_(table__pooling=pooling)
    graph = op_graph(workload, batch, train=train)
    assert all(op.parent < index for index, op in enumerate(graph.ops))
    assert all(op.parent == NO_OP or op.parent >= 0 for op in graph.ops)
    assert np.all(graph.data[:, 0] != graph.data[:, 1])
    assert graph.data.size == 0 or graph.data.max() < len(graph)


def test_a_rank_and_a_batch_that_cannot_be() -> None:
    with pytest.raises(WorkloadError, match="a global batch of 0: expected 1 or more"):
        op_graph(SMALL, 0, ranks=2)
    with pytest.raises(WorkloadError, match="no rank 2 among 2"):
        op_graph(SMALL, 8, ranks=2, rank=2)


@pytest.mark.parametrize("name", ["pytorch", "reference", "fbgemm"])
@pytest.mark.parametrize("kind", ["dot", "cat"])
def test_under_autocast_operands_have_one_type_and_rows_are_learnt_in_theirs(
    name: str, kind: str
) -> None:
    """Rows come in fp32 beside features in bf16; their gradients, and what they send, are fp32."""
    software = Implementation(name, precision="bf16")
    asked = replace(SMALL, implementation=software, interaction=Interaction(kind))
    graph = op_graph(asked, ranks=2)
    for op in graph.ops:
        types = {t.dtype for t in op.tensors}
        if op.name in ("aten::cat", "aten::bmm", "aten::addmm"):
            assert len(types) == 1, (op, types)
        if op.name in ("c10d::alltoall_base_", "aten::index_select"):
            assert "bf16" not in types, op


def test_what_hugectr_joins_has_the_type_of_its_layers() -> None:
    software = Implementation("hugectr", precision="bf16", exchange_precision="fp32")
    (joined,) = (
        op
        for op in op_graph(replace(SMALL, implementation=software), ranks=2).ops
        if op.name == "hugectr::interaction"
    )
    assert [t.dtype for t in joined.outputs] == ["bf16"]
