"""How far kernels inside real programs are from what their shapes say, held where they are now.

Percent of what was measured. Constants of these families were chosen on some of these sources
(`test_embedding`: which); a bound is a little above the error, so that worse shows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.published.lookups import read_lookups
from benchmarks.published.ops import evaluate_ops, op_errors

V100 = "traces/dlrm_v100x8"
A100 = "traces/dlrm_meta/a100x8_trace_diff_control.json.gz"
V100_SKEWED = "traces_2/dlrm_meta/v100x2_trace_diff_test.json.gz"
A100_EMPTY_BAGS = "traces_2/dlrm_meta/a100x16_negative_queue_rank0.json.gz"
V100_RESNET = "traces/train/v100_resnet50_workers0_a.json.gz"
MI300X_RESNET = "traces/train/mi300x8_resnet_act_checkpoint.json.gz"
H100_TIMESFORMER = "traces/inference/h100_timesformer.json.gz"
LIN = "lin2022/device_kernels_by_op_instance.csv"
TIMINGS = "embedding/embedding_kernels.csv"


def errors(path: Path, only: str = "*") -> dict[str, Any]:
    is_table = path.suffix == ".csv"
    evaluation = op_errors(read_lookups(path)) if is_table else evaluate_ops([str(path)], only=only)
    found: dict[str, Any] = evaluation["all"]
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "n", "gmae_pct"),
    [
        (V100, 16, 11),  # longest bag, start of a lookup, sort of few keys
        (A100, 24, 7),  # runs, jagged work, sort of many keys
        (V100_SKEWED, 24, 8),  # rate of rows in Volta's L2; its backward is held out
        (A100_EMPTY_BAGS, 10, 15),  # a bag beside its rows; its backward is held out
        (LIN, 80, 5),  # rates of rows at random; the MLPerf half is held out
        (TIMINGS, 20, 18),  # rate of rows in the L2; ten rows move as on a TITAN Xp, not a V100
    ],
)
def test_embedding(reference: Path, source: str, n: int, gmae_pct: float) -> None:
    found = errors(reference / source, "*ookup*")
    assert found["n"] == n
    assert found["gmae_pct"] < gmae_pct


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "only", "gmae_pct"),
    [
        (V100_RESNET, "*batch_norm*", 16),
        (MI300X_RESNET, "*batch_norm*", 26),
        (V100_RESNET, "*pool*", 11),
        (MI300X_RESNET, "*pool*", 25),
        (V100, "aten::cat", 15),
        (H100_TIMESFORMER, "aten::_softmax", 9),
    ],
)
def test_own_physics(reference: Path, source: str, only: str, gmae_pct: float) -> None:
    assert errors(reference / source, only)["gmae_pct"] < gmae_pct
