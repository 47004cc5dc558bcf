"""Predictions from shapes alone: whole steps whose parts can be counted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfmodel.cost.durations import durations_of
from perfmodel.errors import WorkloadError
from perfmodel.hardware import cluster
from perfmodel.lowering import lower
from perfmodel.lowering.host import Profile, Statistic
from perfmodel.ops.graph import Op, OpGraph, Tensor
from perfmodel.prediction import Result, predict
from perfmodel.prediction.scheduled import HostCosts, schedule_shapes
from perfmodel.prediction.shapes import predict_shapes
from perfmodel.timeline.graph.kinds import NodeKind

MACHINE = cluster("v100-sxm2-16gb")
LARGE = OpGraph((Op("aten::mm", (Tensor((4096, 4096)), Tensor((4096, 4096)))),) * 3)
SMALL = OpGraph((Op("aten::mm", (Tensor((8, 8)), Tensor((8, 8)))),) * 3)


def _costs(each_us: float, ratio: float = 1.0) -> HostCosts:
    """A host whose every overhead takes `each_us`."""
    one = Statistic(1, each_us, 0.0, *(each_us,) * 5, each_us)
    kinds = ("T1", "T2", "T3", "T4", "T5", "op_without_launch")
    return HostCosts(Profile({(kind, None, None): one for kind in kinds}), ratio, "")


def _step_us(graph: OpGraph, costs: HostCosts) -> float:
    return float(schedule_shapes(graph, MACHINE, costs).timeline.step_us[0])


def test_a_host_bound_step_is_the_hosts_time() -> None:
    four_per_op = 3 * 4 * 50.0
    assert _step_us(SMALL, _costs(50)) == pytest.approx(four_per_op, rel=0.02)
    assert _step_us(SMALL, _costs(50, ratio=2)) == pytest.approx(2 * four_per_op, rel=0.02)


def test_a_device_bound_step_is_the_devices_time() -> None:
    lowered = lower(LARGE, "cuda", device=MACHINE.node.device)
    kernels_us = durations_of(lowered.rows, MACHINE).duration_us.sum()
    assert _step_us(LARGE, _costs(1)) == pytest.approx(kernels_us, rel=0.01)
    assert _step_us(LARGE, _costs(1)) > kernels_us


def test_a_cuda_graph_takes_one_launch() -> None:
    captured = OpGraph(SMALL.ops, cuda_graphs=True)
    waits_us = sum(durations_of(lower(SMALL, "cuda").rows, MACHINE).duration_us)
    lags_us = 1.5 + 0.25 * (len(SMALL.ops) - 1) + 2.0
    by_hand_us = 2 * 50 + waits_us + lags_us  # what precedes the replay, and its launch
    assert _step_us(captured, _costs(50)) == pytest.approx(by_hand_us, rel=1e-6)


def test_what_the_host_waits_for_parts_cuda_graphs() -> None:
    """Two graphs of three products and the copy between them: what precedes a replay, and its
    launch, twice; of the copy all four parts; and the wait for it."""
    back = Op("aten::to", (Tensor((8, 8), device="cuda:0"),), (Tensor((8, 8), device="cpu"),))
    graph = OpGraph((*SMALL.ops, back, *SMALL.ops), cuda_graphs=True)
    found = schedule_shapes(graph, MACHINE, _costs(50))
    built = found.timeline.graph
    kinds = zip(built.labels, built.nodes_.kind.tolist(), strict=True)
    names = [label for label, kind in kinds if kind == NodeKind.LAUNCH]
    assert names == ["cudaGraphLaunch", "cudaMemcpyAsync", "cudaGraphLaunch"]
    assert float(found.timeline.step_us[0]) == pytest.approx((2 + 4 + 2) * 50, rel=0.15)
    assert found.notes == (
        "CUDA graphs: 2 hold 6 calls; launched alone: 1 that wait for the device or the host",
    )


def test_each_step_is_a_graph_of_its_own() -> None:
    steps = [replace(op, step=number) for number in range(2) for op in SMALL.ops]
    found = schedule_shapes(OpGraph(tuple(steps), cuda_graphs=True), MACHINE, _costs(50))
    graph = found.timeline.graph
    assert (graph.nodes_.kind == NodeKind.LAUNCH).sum() == 2
    assert found.notes == ("CUDA graphs: 2 hold 6 calls",)


def test_a_result_says_what_it_is_made_of() -> None:
    result = predict_shapes([LARGE], MACHINE, name="v", costs=_costs(1))
    assert result.mode == "model"
    assert [row["family"] for row in result.families] == ["matmul"]
    assert result.coverage["modelled_frac"] == 1
    assert result.low_us is not None
    assert result.high_us is not None
    assert result.low_us < result.step_us < result.high_us
    assert sum(piece.duration_us for piece in result.critical_path) == pytest.approx(result.step_us)


def _workload(hardware: str, **settings: int) -> Result:
    return predict("lin-dlrm-ddp", hardware=[hardware], **settings).results[0]


def test_a_device_alone_is_one_rank_and_a_node_all_of_them() -> None:
    alone, node = _workload("v100-sxm2-16gb", batch=2048), _workload("dgx-1", batch=2048)
    assert alone.step_us != node.step_us
    assert "communication" not in {row["family"] for row in alone.families}
    assert "communication" in {row["family"] for row in node.families}


def test_a_larger_batch_takes_longer_and_inference_less() -> None:
    small, large = (_workload("v100-sxm2-16gb", batch=batch) for batch in (512, 8192))
    assert small.step_us < large.step_us
    trained = predict("lin-dlrm-ddp", hardware=["v100-sxm2-16gb"], batch=8192)
    forward = predict("lin-dlrm-ddp", hardware=["v100-sxm2-16gb"], batch=8192, train=False)
    assert forward.results[0].step_us < trained.results[0].step_us / 2


def test_evaluations_count_where_the_benchmark_counts_them() -> None:
    found = predict("dlrm-mlperf", hardware=["dgx-a100-80gb"], batch=55296)
    assert any("evaluation included" in line for line in found.warnings)
    assert found.results[0].critical_path[-1].kind == "evaluation"


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(WorkloadError, match=r"tables need .* more than .* v100-sxm2-16gb have"):
        predict("nvidia-dlrm-extra-large", hardware=["v100-sxm2-16gb"])


def test_a_cpu_runs_it_too() -> None:
    result = _workload("epyc-7742", batch=512)
    assert result.rank.gpu_active_us == 0
    assert result.step_us > 0


def test_a_batch_that_ranks_do_not_divide_takes_what_the_fullest_does() -> None:
    """2049 samples on 8 ranks: 257 on the first, as of 2056 on all, but fewer are looked up."""
    between = _workload("dgx-1", batch=2049).step_us
    assert between == pytest.approx(_workload("dgx-1", batch=2056).step_us, rel=0.01)


def test_a_blocking_copy_holds_the_host() -> None:
    back = Op(
        "aten::to",
        (Tensor((4096, 4096), device="cuda:0"),),
        (Tensor((4096, 4096), device="cpu"),),
    )
    before = OpGraph((*LARGE.ops, back))
    graph = OpGraph((*before.ops, *SMALL.ops))
    assert any(piece.blocks for piece in lower(graph, "cuda", device=MACHINE.node.device).pieces)
    after_us = 3 * 4 * 50.0
    assert _step_us(graph, _costs(50)) > _step_us(before, _costs(50)) + after_us / 2
