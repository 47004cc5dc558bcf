"""Buckets of DDP, by hand and as traces of residual networks show them."""

from __future__ import annotations

from pathlib import Path

import pytest

import perfmodel
from perfmodel.workload import load_workload, op_graph
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.training import Reducer

MIB = 1 << 20


def buckets(elements: list[int], dtype: str = "fp32", bucket_bytes: int = 25 * MIB) -> list[int]:
    """Elements per all-reduce, of gradients in the order in which they arrive."""
    r = Recorder("cuda")
    parameters = [r.tensor((count,)) for count in elements]
    reducer = Reducer(parameters, 2, bucket_bytes)
    for parameter in parameters:
        reducer.arrived(r, parameter, r.tensor(parameter.shape, dtype))
    return [bucket.elements for bucket, _ in reducer.buckets]


def residual_network(blocks: list[int], *, bottleneck: bool) -> list[int]:
    """Sizes of the parameters of a ResNet for 1,000 classes, last first.

    Source: He et al. 2016, arXiv:1512.03385, table 1; in the order of torchvision's modules.
    """
    sizes, inner = [3 * 64 * 49, 64, 64], 64
    for stage, count in enumerate(blocks):
        width = 64 << stage
        outer = width * 4 if bottleneck else width
        for block in range(count):
            shapes = [(inner, width, 1 if bottleneck else 9), (width, width, 9)]
            shapes += [(width, outer, 1)] * bottleneck
            shapes += [(inner, outer, 1)] * (block == 0 and inner != outer)
            for given, made, taps in shapes:
                sizes += [given * made * taps, made, made]
            inner = outer
    return [*sizes, inner * 1000, 1000][::-1]


def test_a_bucket_is_full_with_the_gradient_that_reaches_its_size() -> None:
    quarter = MIB // 16
    assert buckets([quarter] * 40, bucket_bytes=2 * MIB) == [4 * quarter] + [8 * quarter] * 4 + [
        4 * quarter
    ]


def test_a_bucket_is_held_once() -> None:
    """What a gradient is multiplied into is a part of the bucket."""
    r, shape = Recorder("cuda"), (MIB,)
    parameters = [r.tensor(shape) for _ in range(3)]
    reducer = Reducer(parameters, 2, 2 * 4 * MIB)
    for parameter in parameters:
        reducer.arrived(r, parameter, r.tensor(shape))
    written = [op.outputs[0].storage_id for op in r.ops() if op.name == "aten::mul"]
    first, second = (bucket.storage_id for bucket, _ in reducer.buckets)
    assert written == [first, second, second] != [first] * 3


def test_half_as_wide_gradients_fill_half_as_fast() -> None:
    assert buckets([MIB // 4] * 4) == [MIB // 4, 3 * (MIB // 4)]
    assert buckets([MIB // 4] * 4, "bf16") == [MIB // 2, MIB // 2]


def test_small_buckets_are_never_larger_than_asked() -> None:
    assert buckets([1024] * 4, bucket_bytes=4096) == [1024] * 4


@pytest.mark.parametrize(
    ("name", "blocks", "bottleneck", "dtype"),
    [
        ("v100_resnet_ddp_ns_resolution", [3, 4, 6, 3], True, "fp32"),
        ("mi300x8_resnet_act_checkpoint", [2, 2, 2, 2], False, "bf16"),
    ],
)
def test_as_the_traces_have_them(
    name: str, blocks: list[int], bottleneck: bool, dtype: str, reference: Path
) -> None:
    rank = perfmodel.read(reference / "traces/train" / f"{name}.json.gz").ranks[0]
    summed = [
        int(rank.in_elements[row])
        for row in range(len(rank))
        if rank.text(row) == "record_param_comms"
        and rank.strings[rank.collective[row]] == "allreduce"
    ]
    expected = buckets(residual_network(blocks, bottleneck=bottleneck), dtype)
    steps, rest = divmod(len(summed), len(expected))
    assert (steps >= 3, rest) == (True, 0)
    assert summed == expected * steps


def test_a_workload_says_how_large_they_are() -> None:
    workload = load_workload("torchrec-golden")

    def reduced(bucket_bytes: int) -> int:
        changed = workload.with_(implementation__ddp_bucket_bytes=bucket_bytes)
        ops = op_graph(changed, ranks=2).ops
        return sum(op.name == "c10d::allreduce_" for op in ops)

    assert reduced(25 * MIB) < reduced(64 * 1024)


def test_gradients_of_torchrec_are_views_of_their_buckets() -> None:
    """Its traces copy none out of a bucket; plain DDP copies each (`mi300x8_resnet…`: 186 of 186).
    What reads a bucket behind its sum is the optimizer."""
    asked = load_workload("criteo-kaggle")
    copied = {}
    for software in ("pytorch", "torchrec"):
        graph = op_graph(asked.with_(implementation__name=software), ranks=2)
        names = [op.name for op in graph.ops]
        copied[software] = names.count("torch.distributed.ddp.reducer::copy_bucket_to_grad")
        summed = {n for n, op in enumerate(graph.ops) if "all_reduce" in op.attributes.values()}
        readers = {graph.ops[to].phase for source, to in graph.data.tolist() if source in summed}
        assert "optimizer" in readers or copied[software]
    assert copied == {"pytorch": names.count("torch::distributed::reducer::mul_out"), "torchrec": 0}
