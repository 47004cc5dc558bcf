"""Breakdown of every real trace: it sums, and it agrees with an independent accounting."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from slow import slow_but

from perfmodel.errors import TraceError
from perfmodel.prediction.breakdown.job import Breakdown, breakdown
from perfmodel.trace import read

TRACES = (
    "critical_path/a100_alexnet",
    "critical_path/a100_event_sync",
    "dlrm_meta/a100x8_trace_diff_control",
    "dlrm_meta/gpu128_sampled_rank0",
    "edge/cpu_only_rank_non_gpu",
    "et_kineto_pairs/a100_simple_add_kineto",
    "et_kineto_pairs/rtx2080ti_linear_kineto",
    "inference/h100_qwen1.5-0.5b",
    "inference/h100_timesformer",
    "inference/mi210_gpu_only",
    "inference/mi300x_qwen1.5-0.5b",
    "train/mi300x8_resnet_act_checkpoint",
    "train/v100_resnet50_workers0_a",
    "train/v100_resnet50_workers4_a",
    "train/v100_resnet_ddp_ns_resolution",
    "train/v100x2_df_index_resolver_rank1",
    *(f"dlrm_v100x8/kineto_rank{rank}" for rank in range(4)),
    *(f"torchrec_v100x4/sst_long_a2a_optimizer_3_29220/rank{rank}" for rank in range(4)),
    *(f"torchrec_v100x4/sst_long_a2a_optimizer_5_qcomm_54105/rank{rank}" for rank in range(4)),
)
FOLDERS = (
    "dlrm_v100x8",
    "torchrec_v100x4/sst_long_a2a_optimizer_3_29220",
    "torchrec_v100x4/sst_long_a2a_optimizer_5_qcomm_54105",
)


def file_of(reference: Path, name: str) -> Path:
    return reference / "traces" / f"{name}.json.gz"


def check(found: Breakdown, path: Path, *, is_explained: bool) -> None:
    """Causes and the critical path sum, and little of the idle time has no cause."""
    for rank in found.ranks:
        for step in rank.steps:
            figures = step.accounting
            assert sum(step.critical_path_by_kind.values()) == pytest.approx(figures.step_us), path
            assert sum(step.idle_by_cause.values()) == pytest.approx(figures.gpu_idle_us), path
            unexplained = step.idle_by_cause.get("unexplained", 0.0)
            if is_explained:
                assert unexplained <= 0.05 * figures.gpu_idle_us, path
                assert unexplained <= 0.01 * figures.step_us, path


@pytest.mark.parametrize("name", [*TRACES[:6], *slow_but(0, FOLDERS)])
def test_causes_and_critical_path_sum_and_little_stays_unexplained(
    reference: Path, name: str
) -> None:
    path = reference / "traces" / name if name in FOLDERS else file_of(reference, name)
    check(breakdown(read(path)), path, is_explained=True)


@pytest.mark.slow
def test_every_file_sums_or_says_why_there_is_nothing_to_break_down(reference: Path) -> None:
    explained = {file_of(reference, name) for name in TRACES}
    for path in sorted((reference / "traces").rglob("*.json.gz")):
        trace = read(path)
        if trace.ranks:
            found = breakdown(trace)
            assert found.ranks
            check(found, path, is_explained=path in explained)
            explained.discard(path)
        else:
            with pytest.raises(TraceError, match="without timings"):
                breakdown(trace)
    assert not explained
    for path in sorted((reference / "execution_graphs").glob("*.json.gz")):
        assert read(path).execution_traces


def test_device_time_agrees_with_an_independent_accounting(reference: Path) -> None:
    golden = json.loads((reference / "golden" / "multirank_accounting.json").read_text())
    compared = 0
    for folder in golden.values():
        for rank in folder["per_rank"].values():
            path = reference / "traces" / folder["dir"] / rank["file"]
            steps = breakdown(read(path)).ranks[0].steps
            for step, wanted in zip(steps, rank["steps"], strict=True):
                figures = step.accounting
                for ours, theirs in (
                    (figures.step_us, "step_us"),
                    (figures.gpu_active_us, "gpu_busy_us"),
                    (figures.gpu_idle_us, "gpu_idle_us"),
                    (figures.comm_us, "comm_us"),
                    (figures.compute_us, "compute_us"),
                    (figures.memcpy_us, "mem_us"),
                    (figures.exposed_comm_us, "comm_exposed_us"),
                ):
                    assert ours == pytest.approx(wanted[theirs], abs=2), (path, step.name, theirs)
                    compared += 1
    assert compared >= 4 * 7


def test_a_sampled_file_says_so(reference: Path) -> None:
    found = breakdown(read(file_of(reference, "dlrm_meta/gpu128_sampled_rank0")))
    assert any("sampled or filtered" in text for text in found.warnings)
    assert found.ranks[0].steps[0].idle_by_cause["recording_missing"] > 0
