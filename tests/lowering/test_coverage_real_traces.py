"""How much of the device time of real traces is lowered, and as what.

Shares of the time in kernels that an op launched: lowered without the fallback; of those whose
sizes are all told; in kernels of a family that the pieces are. Then launches per measured kernel.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from lowering.lowered_shares import lowered_shares
from slow import slow_but

import perfmodel
from perfmodel.hardware.parts import Target
from perfmodel.lowering import lower
from perfmodel.lowering.lower import pieces_by_op
from perfmodel.lowering.observed import with_placement
from perfmodel.ops.read import op_graph
from perfmodel.ops.rows import FRAMEWORK
from perfmodel.ops.spec import OPS

TRACES = Path(__file__).parents[2] / "traces"

GOLDEN: dict[str, tuple[Target, float, float, float, float]] = {
    "dlrm_v100x8": ("cuda", 1.0, 1.0, 1.0, 1.004),
    "dlrm_meta/a100x8_trace_diff_control.json.gz": ("cuda", 0.9998, 0.6312, 1.0, 0.979),
    "dlrm_meta/gpu128_sampled_rank0.json.gz": ("cuda", 0.9999, 0.8037, 0.9985, 1.1154),
    "inference/h100_qwen1.5-0.5b.json.gz": ("cuda", 1.0, 1.0, 1.0, 1.0),
    "inference/h100_timesformer.json.gz": ("cuda", 1.0, 1.0, 1.0, 0.996),
    "inference/mi300x_qwen1.5-0.5b.json.gz": ("rocm", 1.0, 0.9999, 1.0, 1.0),
    "train/v100_resnet50_workers0_a.json.gz": ("cuda", 1.0, 0.9976, 0.9996, 0.975),
    "train/v100_resnet50_workers4_a.json.gz": ("cuda", 1.0, 0.9977, 0.9996, 0.964),
    "train/mi300x8_resnet_act_checkpoint.json.gz": ("rocm", 0.9987, 0.9985, 0.9997, 0.9965),
}
"""Every shared trace whose profile records shapes; of several ranks the first."""


@pytest.mark.parametrize("name", slow_but(1, GOLDEN))
def test_device_time_is_lowered(reference: Path, name: str) -> None:
    target, *expected = GOLDEN[name]
    trace = perfmodel.read(reference / "traces" / name)
    rank, links = trace.ranks[0], trace.links[0]
    graph = with_placement(op_graph(trace)[0], rank, links)
    found = lowered_shares(lower(graph, target), rank, links)
    assert found[0] >= 0.98
    assert found == pytest.approx(expected, abs=6e-4)


@pytest.mark.parametrize(
    "path",
    ["h200/dlrm/dlrm_mlperf_b512_kineto.json.gz", "h200_second/hstu/hstu_long_b48_kineto.json.gz"],
)
def test_ops_know_the_dims_that_they_are_given(path: str) -> None:
    """A dim that an op does not know would be passed over without a word."""
    graph = op_graph(perfmodel.read(TRACES / path))[0]
    pieces = [piece for own in pieces_by_op(graph.ops, "cuda")[0].values() for piece in own]
    given = {(piece.op, dim) for piece in pieces for dim in piece.dims}
    assert ("copy", "apart") in given
    unknown = {(op, dim) for op, dim in given if dim not in OPS[op].dims + tuple(OPS[op].defaults)}
    assert {dim for _, dim in unknown} <= {FRAMEWORK}


def test_every_rank_of_the_paired_dlrm_is_lowered(reference: Path) -> None:
    trace = perfmodel.read(reference / "traces" / "dlrm_v100x8")
    for graph, rank, links in zip(op_graph(trace), trace.ranks, trace.links, strict=True):
        lowered = lower(with_placement(graph, rank, links), "cuda")
        assert lowered_shares(lowered, rank, links)[:2] == pytest.approx((1.0, 1.0))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "traces/et_only/resnet_et_1.1.0-chakra.0.0.4.json.gz",
        "traces/et_only/pt2_et_1.1.1.json.gz",
        "execution_graphs/alexnet_et_2023.json.gz",
        "execution_graphs/dlrm_default_1024_et_v1.0.0.json.gz",
    ],
)
def test_execution_traces_need_no_fallback(reference: Path, name: str) -> None:
    (graph,) = op_graph(perfmodel.read(reference / name))
    found = lower(graph, "cuda")
    assert not found.unknown
    assert not any(piece.guessed for piece in found.pieces)
