"""`predict`: results, medians, intervals, errors, and the JSON that carries them."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from timeline.graph.drawn import any_trace, quick
from tiny import GEMM, NCCL, EtNode, Tiny, execution_trace, trace_of

from perfmodel.errors import PerfmodelError, TraceError, UsageError
from perfmodel.prediction import Prediction, predict
from perfmodel.prediction.intervals import unseen_step_interval
from perfmodel.trace import Trace


def steps(*kernels_us: float, rank: int | None = None, name: str = GEMM) -> Tiny:
    """One step a kernel: the host launches it, waits, and needs 60 us beside."""
    t = Tiny(rank, 2)
    at = 0.0
    for number, us in enumerate(kernels_us):
        t.op("aten::mm", at, at + 30)
        t.launch(at + 10, at + 15, kernel=(at + 20, at + 20 + us), name=name)
        t.call("cudaDeviceSynchronize", at + 30, at + 30 + us)
        t.op("optimizer", at + 40 + us, at + 60 + us)
        t.step(number, at, at + 60 + us)
        at += 60 + us
    return t


def only(prediction: Prediction) -> dict[str, object]:
    (result,) = prediction.to_dict()["results"]
    return dict(result)


def test_a_replay() -> None:
    found = only(predict(steps(100, 140, 120).trace()))
    assert (found["mode"], found["step_us"]) == ("replay", 180)
    assert [step["step_us"] for step in found["steps"]] == [160, 200, 180]
    assert [step["measured_us"] for step in found["steps"]] == [160, 200, 180]
    assert [step["error_pct"] for step in found["steps"]] == [0, 0, 0]
    assert [step["warmup"] for step in found["steps"]] == [False] * 3
    assert found["error_pct"] == {"step": 0, "gpu_active": 0}
    assert (found["gpu_active_us"], found["gpu_idle_us"], found["kernel_sum_us"]) == (120, 60, 120)
    assert (found["comm_us"], found["exposed_comm_us"]) == (0, 0)
    assert found["measured"] == {
        "step_us": 180,
        "gpu_active_us": 120,
        "gpu_idle_us": 60,
        "comm_us": 0,
        "exposed_comm_us": 0,
    }
    assert found["hardware"] == "Tesla V100-SXM2-16GB"


def test_the_interval_is_of_a_step_that_was_not_seen() -> None:
    found = only(predict(steps(100, 140, 120).trace()))
    # 160, 200 and 180 us, each beside the median of the others.
    seen = np.log([160 / 190, 200 / 170, 180 / 180])
    expected = unseen_step_interval(180, seen)
    assert (found["low_us"], found["high_us"]) == pytest.approx(expected, abs=1e-3)
    assert found["low_us"] < 160 < 200 < found["high_us"]
    alone = only(predict(steps(100).trace()))
    assert (alone["low_us"], alone["high_us"]) == (None, None)


def test_warmup_does_not_count_in_the_median_but_is_listed() -> None:
    found = only(predict(steps(500, 100, 140, 120).trace()))
    assert [step["warmup"] for step in found["steps"]] == [True, False, False, False]
    assert [step["role"] for step in found["steps"]] == ["warm-up", "steady", "steady", "steady"]
    assert found["step_us"] == 180
    assert len(found["steps"]) == 4


def test_a_slow_step_in_the_middle_is_an_outlier() -> None:
    found = only(predict(steps(100, 140, 500, 120).trace()))
    assert [step["role"] for step in found["steps"]] == ["steady", "steady", "outlier", "steady"]
    assert not any(step["warmup"] for step in found["steps"])
    assert found["step_us"] == 180
    result = predict(steps(100, 140, 500, 120).trace()).results[0]
    assert result.median_mark == 3  # the step of 180 us


def host_bound(*ops_us: float) -> Trace:
    t = Tiny()
    at = 0.0
    for number, us in enumerate(ops_us):
        t.step(number, at, at + us)
        t.op("aten::mm", at, at + us)
        at += us
    return t.trace()


def test_leaving_a_step_out_predicts_it_from_the_others() -> None:
    trace = host_bound(100, 120, 110)
    found = only(predict(trace, leave_one_step_out=True))
    assert [step["step_us"] for step in found["steps"]] == [115, 105, 110]
    assert [step["measured_us"] for step in found["steps"]] == [100, 120, 110]
    assert found["step_us"] == 110
    replayed = only(predict(trace))
    assert [step["step_us"] for step in replayed["steps"]] == [100, 120, 110]
    assert [step["left_out"] for step in replayed["steps"]] == [None] * 3


def test_a_step_left_out_has_an_interval_and_nulls() -> None:
    found = only(predict(host_bound(100, 120, 110), leave_one_step_out=True))
    left = [step["left_out"] for step in found["steps"]]
    assert [one["null_mean_us"] for one in left] == [115, 105, 110]
    # Of the first from the errors of the others: 120 beside 105, 110 beside 110.
    expected = unseen_step_interval(115, np.log([120 / 105, 110 / 110]))
    assert (left[0]["low_us"], left[0]["high_us"]) == pytest.approx(expected, abs=1e-3)
    scaled = only(predict(host_bound(100, 120, 110), leave_one_step_out=True, scale="host=2"))
    assert scaled["steps"][0]["left_out"]["null_mean_us"] is None


def test_warm_up_and_outliers_are_no_null() -> None:
    found = only(predict(host_bound(500, 100, 120, 400, 110), leave_one_step_out=True))
    left = [step["left_out"] for step in found["steps"]]
    assert [one["null_mean_us"] for one in left] == [110, 115, 105, 110, 110]


def test_the_share_of_the_path_that_is_host_work() -> None:
    assert [s["measured_host_frac"] for s in only(predict(host_bound(100)))["steps"]] == [1]
    (step,) = only(predict(steps(140).trace()))["steps"]
    # 10 of T2, 5 of T4, 10 of T1 and 20 of the optimizer, of 200 us.
    assert step["measured_host_frac"] == pytest.approx((10 + 5 + 10 + 20) / 200)


def test_scaled_predictions_have_no_measurement_beside() -> None:
    found = only(predict(steps(100, 140, 120).trace(), scale=["gpu=0.5"]))
    assert [step["step_us"] for step in found["steps"]] == [110, 130, 120]
    assert (found["measured"], found["error_pct"]) == (None, None)
    assert [step["measured_us"] for step in found["steps"]] == [None] * 3


def test_a_what_if_stands_beside_what_it_is_without() -> None:
    trace = steps(100, 140, 120).trace()
    plain, found = only(predict(trace)), only(predict(trace, scale=["gpu=0.5"]))
    keys = ("step_us", "low_us", "high_us", "gpu_active_us", "gpu_idle_us", "comm_us")
    keys = (*keys, "exposed_comm_us", "kernel_sum_us")
    assert found["baseline"] == {key: plain[key] for key in keys}
    # A step is 60 us and its kernel; half the kernel of the median step is 60 us.
    assert (found["step_us"], found["gain_us"], found["gain_frac"]) == (120, 60, 0.3333)
    gains = [(step["baseline_us"], step["gain_us"], step["gain_frac"]) for step in found["steps"]]
    assert gains == [(160, 50, 0.3125), (200, 70, 0.35), (180, 60, 0.3333)]
    assert [rank["gain_us"] for rank in found["per_rank"]] == [60]
    assert (plain["baseline"], plain["gain_us"], plain["gain_frac"]) == (None, None, None)
    assert {step["baseline_us"] for step in plain["steps"]} == {None}


def test_the_baseline_is_on_the_same_hardware() -> None:
    trace = steps(100, 140, 120).trace()
    moved = only(predict(trace, hardware="h100-sxm"))
    found = only(predict(trace, hardware="h100-sxm", remove=["compute"]))
    assert found["baseline"]["step_us"] == moved["step_us"]
    assert found["gain_us"] == pytest.approx(moved["step_us"] - found["step_us"], abs=1e-3)


def test_each_rank_gains_its_own() -> None:
    first, second = steps(100, 140, 120, rank=0), steps(100, 140, 120, rank=1)
    found = only(predict(trace_of(first, second), remove=["compute@1"]))
    assert [rank["baseline_us"] for rank in found["per_rank"]] == [180, 180]
    # The call that returned 10 us after the kernel now begins when the host comes to it, at 30 us.
    assert [rank["gain_us"] for rank in found["per_rank"]] == [0, 150 - 40]
    # The job is as fast as its slowest rank.
    assert (found["step_us"], found["gain_us"]) == (180, 0)


def test_a_factor_of_one_is_the_replay() -> None:
    trace = steps(100, 140, 120).trace()
    scaled = only(predict(trace, scale=["gpu=1", "host=1"]))
    replayed = only(predict(trace))
    for key in "step_us", "low_us", "high_us", "gpu_active_us", "families", "critical_path":
        assert scaled[key] == replayed[key]


def test_one_of_what_can_be_several_needs_no_list() -> None:
    trace = steps(100, 140, 120).trace()
    for options in ({"scale": "gpu=0.5"}, {"hardware": "h100-sxm-80gb"}):
        listed = {name: [value] for name, value in options.items()}
        assert only(predict(trace, **options)) == only(predict(trace, **listed))


def test_a_removal() -> None:
    found = only(predict(steps(100, 140, 120).trace(), remove=["host:optimizer"]))
    # The gap before the optimizer carries its name, as its 20 us do.
    assert found["step_us"] == 180 - 20 - 10


def test_families_per_step_largest_first() -> None:
    t = steps(100, 140)
    t.launch(32, 35, (36, 46), name=NCCL, stream=20)
    found = only(predict(t.trace()))["families"]
    assert [(f["time_us"], f["count"]) for f in found] == [(120, 1), (5, 0.5)]
    assert sum(f["time_us"] for f in found) == 125


@pytest.mark.parametrize("name", [NCCL, "void deep_ep::internode_ll::combine<true, 7168, 9>"])
def test_what_a_family_calls_communication_is_communication_everywhere(name: str) -> None:
    trace = steps(100, name=name).trace()
    found = only(predict(trace))
    assert [f["family"] for f in found["families"]] == ["communication"]
    assert found["comm_us"] == found["families"][0]["time_us"]
    halves = [only(predict(trace, scale=[f"{scope}=0.5"])) for scope in ("comm", "communication")]
    assert halves[0]["comm_us"] == halves[1]["comm_us"] == found["comm_us"] / 2


def test_the_critical_path_is_of_the_median_step_and_sums_to_it() -> None:
    found = only(predict(steps(100, 140, 120).trace()))
    path = found["critical_path"]
    assert path[0]["start_us"] == 0
    assert sum(piece["duration_us"] for piece in path) == pytest.approx(180)
    for before, after in itertools.pairwise(path):
        assert before["start_us"] + before["duration_us"] == pytest.approx(after["start_us"])
    assert (GEMM, "compute", 120) in [(p["name"], p["kind"], p["duration_us"]) for p in path]


def test_one_rank_alone_is_warned_of_when_communication_is_scaled() -> None:
    trace = steps(100, name=NCCL).trace()
    for scale in "comm=0.5", "gpu=0.5":
        assert "contains waiting" in predict(trace, scale=[scale]).warnings[0]
    assert predict(trace, scale=["host=0.5"]).warnings == []
    assert predict(steps(100).trace(), scale=["gpu=0.5"]).warnings == []


def meeting(waiting_us: float) -> Trace:
    """Two ranks whose collective ends together; rank 0 waits for rank 1."""
    ranks = []
    for rank, arrives in (0, 100 - waiting_us), (1, 100):
        t = Tiny(rank, 2)
        t.step(1, 0, 200)
        t.op("aten::mm", 0, 30)
        t.launch(2, 5, kernel=(10, arrives))
        t.launch(6, 9, (arrives, 140), NCCL)
        t.call("cudaDeviceSynchronize", 30, 150)
        ranks.append(t)
    return trace_of(*ranks)


def test_where_ranks_meet_the_slowest_stands_for_the_job() -> None:
    prediction = predict(meeting(60), scale=["compute@1=2"])
    found = only(prediction)
    assert prediction.warnings == []
    assert [rank["rank"] for rank in found["per_rank"]] == [0, 1]
    # Rank 1 arrives 90 us later, and rank 0 waits for it.
    assert [rank["step_us"] for rank in found["per_rank"]] == [290, 290]
    assert found["step_us"] == max(rank["step_us"] for rank in found["per_rank"])
    shorter = only(predict(meeting(60), scale=["compute@1=0.5"]))
    assert shorter["step_us"] == 200 - 45


def test_waiting_shrinks_when_the_straggler_does_not_straggle() -> None:
    before = predict(meeting(60)).results[0].ranks[0]
    after = predict(meeting(60), scale=["compute@1=0.5"]).results[0].ranks[0]
    assert before.comm_us == 100
    assert after.comm_us == 55


def test_the_document_is_json_and_the_frame_has_a_row_per_rank() -> None:
    prediction = predict(meeting(60))
    document = json.loads(prediction.to_json())
    assert document["schema"] == "perfmodel.prediction/1"
    assert document["source"]["ranks"] == [0, 1]
    assert prediction.to_frame()["rank"].tolist() == [0, 1]


def test_what_is_asked_of_a_mode_that_it_cannot_do() -> None:
    trace = steps(100).trace()
    cpu = host_bound(100)
    with pytest.raises(UsageError, match="unknown mode 'guess'; one of replay, transfer, model"):
        predict(trace, mode="guess")
    with pytest.raises(UsageError, match="hardware cannot be combined with mode replay"):
        predict(trace, mode="replay", hardware=["H100-SXM"])
    with pytest.raises(UsageError, match="needs hardware"):
        predict(trace, mode="transfer")
    with pytest.raises(UsageError, match="cannot be combined with mode transfer"):
        predict(trace, hardware=["H100-SXM"], leave_one_step_out=True)
    with pytest.raises(TraceError, match="without a GPU has no kernels to transfer"):
        predict(cpu, mode="transfer", hardware=["H100-SXM"])
    with pytest.raises(TraceError, match="ops lack shapes"):
        predict(cpu, hardware=["H100-SXM"])
    untimed = Trace("et.json", (), {0: execution_trace(EtNode("aten::mm", 1))})
    with pytest.raises(TraceError, match="none of its 3 ops records arguments"):
        predict(untimed, hardware=["H100-SXM"])
    with pytest.raises(TraceError, match="no times for mode replay"):
        predict(untimed, mode="replay")
    with pytest.raises(UsageError, match="batch cannot be combined with mode replay"):
        predict(trace, mode="replay", batch=8)
    with pytest.raises(UsageError, match="scale cannot be combined with mode model"):
        predict(untimed, hardware=["H100-SXM"], scale=["gpu=0.5"])
    with pytest.raises(UsageError, match="matches nothing"):
        predict(trace, scale=["comm=0.5"])


def test_a_trace_that_does_not_name_its_device_cannot_be_transferred() -> None:
    t = steps(100)
    t.head["deviceProperties"] = []
    with pytest.raises(
        PerfmodelError, match=r"does not name its GPU, .*: name it with source_device"
    ):
        predict(t.trace(), hardware=["H100-SXM"])


@pytest.mark.parametrize("name", ["", "NVIDIA H900"])
def test_a_user_names_the_machine_that_a_trace_was_recorded_on(name: str) -> None:
    t = steps(100, 140)
    t.head["deviceProperties"] = [{"name": name}]
    trace = t.trace()
    with pytest.raises(PerfmodelError, match=r"tiny: .* with source_device"):
        predict(trace, hardware="h100-sxm")
    same = only(predict(trace, hardware="v100-sxm2-16gb", source_device="v100-sxm2-16gb"))
    assert same["gpu_active_us"] == pytest.approx(120)
    named = predict(steps(100, 140).trace(), hardware="h100-sxm")  # its V100
    found = predict(trace, hardware="h100-sxm", source_device="v100-sxm2-16gb")
    assert only(found)["gpu_active_us"] == pytest.approx(only(named)["gpu_active_us"])
    assert "(as given)" in found.warnings[-1]
    with pytest.raises(PerfmodelError, match="unknown hardware 'nothing'"):
        predict(trace, hardware="h100-sxm", source_device="nothing")
    with pytest.raises(UsageError, match="source_device cannot be combined with a workload"):
        predict("criteo-kaggle", hardware="h100-sxm", source_device="h100-sxm")


@quick
@given(any_trace())
def test_results_of_any_trace_are_finite_and_fit_together(t: Tiny) -> None:
    prediction = predict(t.trace())
    document = json.loads(prediction.to_json())  # refuses what is not finite
    (found,) = document["results"]
    assert found["step_us"] >= 0
    assert (
        found["gpu_active_us"] + found["gpu_idle_us"]
        in (
            0,
            pytest.approx(found["step_us"], abs=1e-3),
        )
        or len(found["steps"]) > 1
    )
    assert found["exposed_comm_us"] <= found["comm_us"] + 1e-3
    assert found["gpu_active_us"] <= found["kernel_sum_us"] + 1e-3
    assert all(0 <= step["measured_host_frac"] <= 1 for step in found["steps"])
    if found["low_us"] is not None:
        assert found["low_us"] <= found["high_us"]
    assert np.isfinite([piece["duration_us"] for piece in found["critical_path"]]).all()


def test_leaving_a_step_out_takes_two_steps() -> None:
    t = Tiny()
    t.step(1, 0, 100)
    t.op("aten::mm", 10, 40)
    with pytest.raises(UsageError, match="takes two steady steps"):
        predict(t.trace(), leave_one_step_out=True)


def test_on_the_same_device_nothing_changes_on_the_device() -> None:
    from perfmodel.hardware import catalogue

    trace = steps(100, 140, 120).trace()
    source = catalogue.from_driver_name("Tesla V100-SXM2-16GB", 16_945_512_448)
    found = only(predict(trace, hardware=[source.name]))
    assert found["mode"] == "transfer"
    assert found["gpu_active_us"] == pytest.approx(120)
    assert found["measured"] is None
