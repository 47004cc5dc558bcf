"""Mode `model` of traces: what was measured stands beside, never within."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny import NCCL, Tiny, float_inputs, trace_of

from perfmodel import read
from perfmodel.errors import TraceError, UsageError, WorkloadError
from perfmodel.prediction import predict
from perfmodel.trace import Trace


def _trace(kernel_us: float = 400.0, gap_us: float = 5.0) -> Trace:
    """Two steps of one product each."""
    tiny = Tiny()
    for number, start in enumerate((0.0, 1000.0)):
        tiny.step(number, start, start + 900)
        begin = start + gap_us
        tiny.op("aten::mm", begin, begin + 20, **float_inputs([2048, 1024], [1024, 1024]))
        tiny.launch(begin + 5, begin + 10, kernel=(begin + 12, begin + 12 + kernel_us))
        tiny.op("aten::relu", begin + 25, begin + 40, **float_inputs([2048, 1024]))
        tiny.launch(begin + 30, begin + 35, kernel=(begin + 420, begin + 450))
    return tiny.trace()


def test_kernel_times_of_the_trace_do_not_matter() -> None:
    slow, fast = (predict(_trace(us), mode="model").results[0] for us in (400.0, 40.0))
    assert slow.step_us == pytest.approx(fast.step_us, rel=1e-9)
    assert slow.rank.measured != fast.rank.measured


def test_on_its_own_gpu_the_measured_step_stands_beside() -> None:
    found = predict(_trace(), mode="model")
    result = found.results[0]
    assert (result.mode, result.hardware) == ("model", "v100-sxm2-16gb")
    assert result.rank.measured is not None
    assert result.rank.measured["step_us"] == 900
    assert any("the trace's own" in line for line in found.warnings)
    assert [row["family"] for row in result.families] == ["matmul", "elementwise"]
    assert {step.measured_host_frac for step in result.rank.steps} == {0.0}


def test_elsewhere_nothing_is_measured_and_the_host_is_the_traces_own_by_its_speed() -> None:
    found = predict(_trace(), mode="model", hardware=["h100-sxm"])
    assert found.results[0].rank.measured is None
    (line,) = [line for line in found.warnings if "host overheads: the trace's own" in line]
    assert "to xeon-platinum-8480c" in line


def test_another_batch_changes_what_the_trace_measured_by_the_ratio_of_shapes() -> None:
    plain = predict(_trace()).results[0]
    half, whole = (predict(_trace(), batch=batch).results[0] for batch in (1024, 2048))
    assert half.mode == whole.mode == "model"
    assert whole.step_us == pytest.approx(plain.step_us)
    assert half.baseline is not None
    assert half.step_us <= whole.step_us
    assert half.families[0]["time_us"] < whole.families[0]["time_us"]
    assert half.rank.measured is None


def test_so_does_an_edit() -> None:
    whole, without = (
        predict(_trace(), mode="model", edit=edit).results[0] for edit in ((), ("remove=aten::mm",))
    )
    changed, plain = (predict(_trace(), edit=e).results[0] for e in (["remove=aten::mm"], ()))
    assert changed.step_us / plain.step_us == pytest.approx(without.step_us / whole.step_us)
    assert [row["family"] for row in without.families] == ["elementwise"]
    assert without.step_us < whole.step_us
    assert without.rank.measured is None
    with pytest.raises(UsageError, match="edit cannot be combined with mode replay"):
        predict(_trace(), mode="replay", edit=["cuda-graphs"])


def _rank(number: int, slow_us: float) -> Tiny:
    """A step of eight views, which take the host `slow_us` each, and an all-reduce."""
    tiny = Tiny(number, 2)
    tiny.step(1, 0.0, 5000.0)
    at = 10.0
    for _ in range(8):
        tiny.op("aten::view", at, at + slow_us, **float_inputs([1024]))
        at += slow_us + 5
    about = {
        "Collective name": "allreduce",
        "Process Group Name": "0",
        "Group size": 2,
        "In msg nelems": 1 << 20,
        "Out msg nelems": 1 << 20,
        "dtype": "Float",
    }
    tiny.op("record_param_comms", at, at + 50, **about, **float_inputs([1024]))
    tiny.launch(at + 5, at + 10, kernel=(at + 12, 4000), name=NCCL)
    return tiny


def test_ranks_meet_each_with_its_own_host() -> None:
    found = predict(trace_of(_rank(0, 10.0), _rank(1, 100.0)), mode="model").results[0]
    fast, slow = found.ranks
    assert fast.waiting_us == pytest.approx(8 * 90, rel=0.1)
    assert slow.waiting_us == pytest.approx(0, abs=1)
    assert fast.transfer_us == pytest.approx(slow.transfer_us, rel=1e-9)
    assert found.straggler is not None
    assert (found.straggler["rank"], found.straggler["cause"]) == (1, "host")
    assert [rank.measured is not None for rank in found.ranks] == [True, True]


def test_a_batch_that_cannot_be_is_refused() -> None:
    with pytest.raises(WorkloadError, match="batch"):
        predict(_trace(), batch=-3)


def test_a_trace_without_shapes_says_how_many_ops_lack_them() -> None:
    tiny = Tiny()
    tiny.step(1, 0, 100)
    tiny.op("aten::mm", 10, 30)
    tiny.launch(15, 20, kernel=(40, 80))
    with pytest.raises(TraceError, match=r"tiny\.json: 1 of 1 ops lack shapes"):
        predict(tiny.trace(), mode="model")


@pytest.mark.slow
def test_what_a_new_batch_leaves_is_said_once_for_all_ranks(reference: Path) -> None:
    found = predict(read(reference / "traces/dlrm_v100x8"), batch=4096)
    said = [line for line in found.warnings if line.startswith("batch 4096: ")]
    assert len(said) > 1
    assert len(set(said)) == len(said)
