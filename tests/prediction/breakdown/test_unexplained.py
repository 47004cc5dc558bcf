"""What nobody can explain is said where it is much, and on real traces it is little or said."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny import Tiny

from perfmodel.prediction import predict
from perfmodel.prediction.breakdown.job import breakdown
from perfmodel.prediction.breakdown.waiting import (
    Unexplained,
    error_warnings,
    unexplained_warnings,
)
from perfmodel.trace import Trace, read

WALKED = (
    "traces_2/dlrm_meta/a100x16_negative_queue_rank0.json.gz",
    "traces_2/dlrm_meta/v100x2_trace_diff_test.json.gz",
    "traces_2/graphs/mi300x_sglang_qwen3_decode.json.gz",
    "traces_2/graphs/mi300x_xdit_flux1_sage.json.gz",
    "traces_2/graphs/vllm_decode_full_graph.json.gz",
    "traces_2/inference/h100_bert-small.json.gz",
    "traces_2/inference/mi300x_bert-small.json.gz",
    "traces_2/inference/mi300x_timesformer.json.gz",
)


def with_gap(gap_us: float) -> Trace:
    """A step of 1,000 us and a wait that nothing explains, before the second of two kernels."""
    t = Tiny()
    t.step(1, 0, 1000 + gap_us)
    t.op("aten::a", 1, 50)
    t.launch(2, 4, (10, 500), "first")
    t.launch(5, 7, (500 + gap_us, 990 + gap_us), "second")
    t.call("cudaDeviceSynchronize", 60, 995 + gap_us)
    return t.trace()


def test_more_than_a_twentieth_of_a_step_is_said_first_with_share_and_place() -> None:
    trace = with_gap(1000)
    found = predict(trace)
    assert found.results[0].coverage["unexplained_frac"] == pytest.approx(0.5)
    assert found.results[0].rank.steps[0].unexplained.frac == pytest.approx(0.5)
    for said in found.warnings[0], breakdown(trace).warnings[0]:
        assert said.startswith("rank 0: 50.0 % of ProfilerStep#1 is unexplained")
        assert "1.00 ms before 'second' on gpu0/stream7" in said


def test_less_is_not() -> None:
    found = predict(with_gap(50))
    assert 0 < found.results[0].coverage["unexplained_frac"] < 0.05
    assert found.cautions == []
    assert breakdown(with_gap(50)).cautions == []


def test_one_line_per_rank() -> None:
    steps = [Unexplained("a", 0, 0.1, "x"), Unexplained("b", 0, 0.2, "y")]
    steps += [Unexplained("a", 1, 0.01, "z")]
    (line,) = unexplained_warnings(steps)
    assert line.startswith("rank 0: 20.0 % of b (and much of 1 more) is unexplained")
    assert "y" in line


def test_a_replay_that_is_off_says_so() -> None:
    assert error_warnings(0, [("a", 101, 100), ("b", 99, 100)]) == []
    (line,) = error_warnings(3, [("a", 101, 100), ("b", 95, 100), ("c", 102, 100)])
    assert line.startswith("rank 3: the replay of b (of 2 such steps) is -5.0 % off")


@pytest.mark.slow
@pytest.mark.parametrize("name", WALKED)
def test_traces_on_which_the_replay_had_lost_time(reference: Path, name: str) -> None:
    found = predict(read(reference / name))
    steps = found.results[0].rank.steps
    worst = max(abs(step.error_pct or 0.0) for step in steps)
    assert worst < 3.0
    if worst > 1.5 or max(step.unexplained.frac for step in steps) > 0.05:
        assert any("unexplained" in line for line in found.cautions)


def test_overlapping_timestamps_leave_little_unexplained(reference: Path) -> None:
    found = breakdown(read(reference / WALKED[1]))
    for step in found.ranks[0].steps:
        share = step.critical_path_by_kind.get("unexplained", 0.0) / step.accounting.step_us
        assert share < 0.02
