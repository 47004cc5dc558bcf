"""NVIDIA's PyTorch example: ranks that differ meet at the same collectives, by hand otherwise."""

from __future__ import annotations

from collections import Counter

import pytest

from perfmodel.graph.ops import Op, OpGraph, tensors_in
from perfmodel.workload import load_workload, op_graph
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.parts.apex_parallel import BUCKET_ELEMENTS, ApexReducer

BATCH, TABLES, DIM = 1024, 26, 128


def graph(rank: int, precision: str = "fp16", *, ranks: int = 8, train: bool = True) -> OpGraph:
    workload = load_workload("nvidia-dlrm-large").with_(implementation__precision=precision)
    return op_graph(workload, BATCH, ranks=ranks, rank=rank, train=train)


def named(found: OpGraph, name: str) -> list[Op]:
    return [op for op in found.ops if op.name == name]


def collectives(found: OpGraph) -> list[tuple[str, str]]:
    return [
        (op.attributes["collective"], op.attributes["dtype"])
        for op in named(found, "record_param_comms")
    ]


@pytest.mark.parametrize("train", [True, False])
def test_all_ranks_call_the_same_collectives(train: bool) -> None:
    """The gradients of the top MLP, which are as wide as its weights, go between the exchanges."""
    called = [collectives(graph(rank, train=train)) for rank in range(8)]
    exchange = ("all_to_all", "fp16")
    assert all(each == called[0] for each in called)
    assert called[0] == ([exchange, ("all_reduce", "fp32"), exchange] if train else [exchange])


def test_the_first_rank_runs_the_bottom_mlp_for_all() -> None:
    """Three layers below and four above are Apex's; the last, with its bias, is PyTorch's."""
    products = [
        Counter(
            op.tensors[0].shape[0]
            for op in graph(rank).ops
            if op.name == "aten::mm" and op.phase == "forward"
        )
        for rank in (0, 1)
    ]
    assert products == [{BATCH: 3, BATCH // 8: 4}, {BATCH // 8: 4}]
    assert len(named(graph(1), "aten::addmm")) == 1


def test_what_a_rank_sends_and_gets_are_its_vectors_and_all_vectors() -> None:
    sizes = []
    for rank in range(8):
        forward, _, back = named(graph(rank), "record_param_comms")
        assert forward.attributes["in_elements"] == back.attributes["out_elements"]
        assert forward.attributes["out_elements"] == str(BATCH // 8 * (TABLES + 1) * DIM)
        sizes.append(int(forward.attributes["in_elements"]) // (BATCH * DIM))
    assert sizes[0] == 1, "the features"
    assert sum(sizes) == TABLES + 1


def test_features_cut_out_of_what_arrived_cost_a_gradient_of_all_vectors() -> None:
    """Zeros for all vectors, the features' gradient among them, and the sum; on one GPU none."""
    whole = (BATCH // 8, TABLES + 1, DIM)
    filled = [op for op in named(graph(1), "aten::fill_") if op.tensors[0].shape == whole]
    summed = [op for op in named(graph(1), "aten::add_") if op.tensors[0].shape == whole]
    assert len(filled) == len(summed) == 1
    alone = graph(0, ranks=1)
    wide = (BATCH, TABLES + 1, DIM)
    assert not [op for op in named(alone, "aten::fill_") if op.tensors[0].shape == wide]


@pytest.mark.parametrize(("precision", "reads"), [("fp16", 1), ("tf32", 0)])
def test_only_a_scaled_loss_has_a_flag_that_the_host_reads(precision: str, reads: int) -> None:
    """Before the optimizer; every step ends with a wait for the device."""
    found = graph(1, precision)
    names = [op.name for op in found.ops]
    assert names.count("aten::_local_scalar_dense") == reads
    assert names.count("aten::_amp_foreach_non_finite_check_and_unscale_") == 2 * reads
    if reads:
        assert names.index("aten::_local_scalar_dense") < names.index("aten::_fused_sgd_")
    assert found.ops[-1].attributes == {"waits_for": "device"}


def test_half_precision_casts_what_autocast_casts() -> None:
    """Weights and biases of five layers there, their gradients back; rows and logits likewise. In
    full precision nothing but the loader's features."""

    def cast(precision: str, rank: int) -> int:
        copies = [op for op in named(graph(rank, precision), "aten::copy_") if len(op.tensors) > 1]
        pairs = [(op.tensors[0], op.tensors[1]) for op in copies]
        wide = [
            to for to, of in pairs if to.dtype != of.dtype and "fp64" not in (to.dtype, of.dtype)
        ]
        return len(wide)

    assert cast("fp16", 1) == 2 * 10 + 2 + 2
    assert cast("fp32", 1) == 0
    assert cast("fp32", 0) == 1


def test_one_gpu_sends_nothing() -> None:
    assert not collectives(graph(0, ranks=1))


def test_a_bucket_of_apex_waits_for_ten_million_elements_or_the_last_gradient() -> None:
    r = Recorder("cuda")
    sizes = [BUCKET_ELEMENTS - 1, 1, 5, 7]
    parameters = [r.tensor((count,)) for count in sizes]
    reducer = ApexReducer(parameters, 2)
    for parameter in (*parameters[:2], r.tensor((9,)), *parameters[2:]):
        reducer.arrived(r, parameter, r.tensor(parameter.shape))
    assert [bucket.elements for bucket, _ in reducer.buckets] == [BUCKET_ELEMENTS, 12]
    reducer.finish(r)
    back = [op for op in r.ops() if op.name == "aten::_foreach_copy_"]
    assert [[x.elements for x in tensors_in(op.inputs[0])] for op in back] == [sizes[:2], sizes[2:]]
