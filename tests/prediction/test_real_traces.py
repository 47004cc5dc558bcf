"""Replay of real training steps, what-ifs that are physically right, and leave-one-step-out."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from slow import slow_but

from perfmodel.base.arrays import Floats
from perfmodel.ops import families_of_kernels
from perfmodel.prediction import Prediction, predict
from perfmodel.prediction.transferred import transfer_durations
from perfmodel.prediction.types import StepPrediction
from perfmodel.timeline.graph import ExecutionGraph, build_graph
from perfmodel.timeline.schedule import StepRole
from perfmodel.trace import Trace, read

TORCHREC = "torchrec_v100x4/sst_long_a2a_optimizer_3_29220"
TORCHREC_QCOMM = "torchrec_v100x4/sst_long_a2a_optimizer_5_qcomm_54105"
A100X8 = "dlrm_meta/a100x8_trace_diff_control.json.gz"
RESNET_DDP = "train/v100_resnet_ddp_ns_resolution.json.gz"
TRAINING = (
    *(f"dlrm_v100x8/kineto_rank{rank}.json.gz" for rank in range(4)),
    *(f"{folder}/rank{rank}.json.gz" for folder in (TORCHREC, TORCHREC_QCOMM) for rank in range(4)),
    A100X8,
    RESNET_DDP,
    "train/v100_resnet50_workers0_a.json.gz",
    "train/v100_resnet50_workers4_a.json.gz",
    "train/v100x2_df_index_resolver_rank1.json.gz",
    "train/mi300x8_resnet_act_checkpoint.json.gz",
)


@cache
def trace(path: Path) -> Trace:
    return read(path)


def steps(prediction: Prediction) -> list[StepPrediction]:
    return [step for rank in prediction.results[0].ranks for step in rank.steps]


def ratio(path: Path, chosen: slice, **options: list[str]) -> float:
    """Step time with a what-if over step time without, summed over chosen steps of all ranks."""
    edited, plain = (predict(trace(path), **some).results[0] for some in (options, {}))
    new, old = (
        sum(step.step_us for rank in result.ranks for step in rank.steps[chosen])
        for result in (edited, plain)
    )
    return new / old


@pytest.mark.parametrize("names", slow_but(1, [(TRAINING[:3],), (TRAINING,)]), ids=len)
def test_replay_of_training_steps(reference: Path, names: tuple[str, ...]) -> None:
    """Each step, and the median of those that the host alone does not decide."""
    errors = []
    for name in names:
        for step in steps(predict(trace(reference / "traces" / name))):
            assert step.error_pct is not None
            assert abs(step.error_pct) <= (6 if step.role != StepRole.STEADY else 1), step
            if step.role == StepRole.STEADY and step.measured_host_frac <= 0.95:
                errors.append(abs(step.error_pct))
    if names == TRAINING:
        assert len(errors) > 20
        assert np.median(errors) <= 0.25


@pytest.mark.parametrize("folder", [TORCHREC, TORCHREC_QCOMM, "dlrm_v100x8"])
def test_ranks_that_meet_follow_without_their_waits_being_given(
    reference: Path, folder: str
) -> None:
    for step in steps(predict(trace(reference / "traces" / folder))):
        assert step.error_pct is not None
        assert abs(step.error_pct) <= (6 if step.role != StepRole.STEADY else 1.5)


@pytest.mark.slow
def test_four_ranks_are_bound_by_their_devices(reference: Path) -> None:
    path = reference / "traces" / TORCHREC
    assert ratio(path, slice(1, 3), scale=["gpu=0.5"]) <= 0.67
    assert 0.90 <= ratio(path, slice(1, 3), scale=["host=0.5"]) <= 1


@pytest.mark.parametrize("rank", range(4))
def test_dlrm_ranks_are_bound_by_their_hosts(reference: Path, rank: int) -> None:
    path = reference / "traces" / f"dlrm_v100x8/kineto_rank{rank}.json.gz"
    assert 0.99 <= ratio(path, slice(None), scale=["compute=0.5"]) <= 1.0005
    assert ratio(path, slice(None), scale=["host=0.5"]) <= 0.75


@pytest.mark.slow
def test_resnet_is_bound_by_its_device(reference: Path) -> None:
    path = reference / "traces" / RESNET_DDP
    assert 0.45 <= ratio(path, slice(3, 5), scale=["gpu=0.5"]) <= 0.55
    assert 0.99 <= ratio(path, slice(3, 5), scale=["host=0.5"]) <= 1.001


@pytest.mark.slow
def test_the_production_dlrm_is_bound_by_both(reference: Path) -> None:
    path = reference / "traces" / A100X8
    assert 0.85 <= ratio(path, slice(None), scale=["gpu=0.5"]) <= 0.92
    assert 0.78 <= ratio(path, slice(None), scale=["host=0.5"]) <= 0.86


def test_taking_the_straggler_out_lets_the_others_wait_less(reference: Path) -> None:
    path = reference / "traces" / TORCHREC
    plain = predict(trace(path)).results[0]
    edited = predict(trace(path), remove=["host:_AlltoAllSingle@2"]).results[0]
    for before, after in zip(plain.ranks, edited.ranks, strict=True):
        assert after.step_us <= before.step_us + 1
        if before.rank != 2:
            assert after.comm_us < before.comm_us - 10_000


def test_leaving_a_step_out_beats_the_mean_of_the_others(reference: Path) -> None:
    path = reference / "traces" / A100X8
    found = steps(predict(trace(path), leave_one_step_out=True))
    measured = np.array([step.measured_us for step in found])
    errors = [abs(step.error_pct or 0) for step in found]
    null = [abs(np.delete(measured, i).mean() / measured[i] - 1) * 100 for i in range(len(found))]
    assert np.mean(errors) <= 4
    assert np.mean(errors) <= np.mean(null)


def test_leaving_a_step_out_of_a_device_bound_run(reference: Path) -> None:
    found = steps(predict(trace(reference / "traces" / RESNET_DDP), leave_one_step_out=True))
    assert [step.name for step in found[1:]] == [f"ProfilerStep#{n}" for n in range(102, 106)]
    assert all(abs(step.error_pct or 0) <= 1 for step in found[1:])


@pytest.mark.parametrize(
    ("source", "target", "hardware"), [("h100", "mi300x", "mi300x"), ("mi300x", "h100", "h100-sxm")]
)
def test_transfer_of_products_between_makers(
    reference: Path, source: str, target: str, hardware: str
) -> None:
    """Measured in November 2026: -18 and -6 %; no model was fitted on these traces."""
    source_path, target_path = (
        reference / "traces" / f"inference/{name}_qwen1.5-0.5b.json.gz" for name in (source, target)
    )
    there = trace(source_path)
    graph = build_graph(there)
    moved = transfer_durations(there, graph, graph.nodes_.duration_us, hardware)
    here = build_graph(trace(target_path))
    assert moved.modelled_frac > 0.65  # of the H100's, 30 % were launched before the recording
    assert _products_us(graph, moved.duration_us) == pytest.approx(
        _products_us(here, here.nodes_.duration_us), rel=0.2
    )


def _products_us(graph: ExecutionGraph, duration_us: Floats) -> float:
    """Time of all matrix products."""
    rows = graph.device_span()[1]
    families = families_of_kernels([graph.labels[row] for row in rows])
    is_product = np.array([family == "matmul" for family in families])
    return float(duration_us[rows][is_product].sum())


def test_transfer_to_the_same_device_is_the_replay(reference: Path) -> None:
    path = reference / "traces" / "inference/h100_qwen1.5-0.5b.json.gz"
    same = predict(trace(path), hardware=["h100-sxm"]).results[0]
    assert same.step_us == pytest.approx(predict(trace(path)).results[0].step_us)
    slower = predict(trace(path), hardware=["v100-sxm2-16gb"]).results[0]
    assert slower.step_us > same.step_us
