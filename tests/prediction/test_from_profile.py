"""Mode `model` of a profile: what it takes over of it, and what it says of that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from slow import slow_but
from tiny import Tiny, float_inputs

from perfmodel.lowering.host import Profile, load_profile
from perfmodel.prediction import Prediction, predict
from perfmodel.prediction.transferred import transfer_ratio
from perfmodel.prediction.types import Result
from perfmodel.timeline.graph.kinds import Cause, NodeKind
from perfmodel.trace import Trace, read

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def _of_cause(result: Result, cause: Cause) -> float:
    """Microseconds of the timeline's nodes of a cause."""
    nodes = result.timeline.graph.nodes_
    return float(nodes.duration_us[nodes.cause == cause].sum())


def _loading() -> Trace:
    """Two steps: 600 of data loading, 100 of Python, a product."""
    t = Tiny()
    for number, begin in enumerate((0.0, 1000.0)):
        t.step(number, begin, begin + 900)
        t.note(LOADER, begin, begin + 600)
        t.op("aten::stack", begin + 200, begin + 500)
        t.product(begin + 700, (begin + 720, begin + 730))
    return t.trace()


@pytest.mark.parametrize("hardware", [(), ("v100-sxm2-16gb",)])
def test_data_loading_and_python_are_the_traces(hardware: tuple[str, ...]) -> None:
    found = predict(_loading(), mode="model", hardware=hardware)
    result = found.results[0]
    # What lies between the operators of a step and at its bounds: all but the product itself.
    assert result.coverage["host_from_trace_us"] == pytest.approx(880)
    assert result.step_us == pytest.approx(900, rel=0.02)
    assert _of_cause(result, Cause.DATA_LOADING) == pytest.approx(2 * 700)
    assert any("0.70 ms of data loading" in line for line in found.warnings)


def test_elsewhere_it_goes_by_the_speed_of_the_hosts() -> None:
    found = predict(_loading(), mode="model", hardware=["h100-sxm"])
    ratio = found.results[0].coverage["host_from_trace_us"] / 880
    assert 0.2 < ratio < 1.0
    assert any(f"times {ratio:.2f} from" in line for line in found.warnings)


def test_a_cpu_names_the_data_loading_that_is_missing() -> None:
    found = predict(_loading(), mode="model", hardware=["cpu-epyc"])
    assert any("0.70 ms of data loading per step are missing" in w for w in found.warnings)


def test_an_edit_takes_the_gap_of_what_it_removes_and_leaves_the_loading() -> None:
    t = Tiny()
    t.step(1, 0, 1000)
    t.note(LOADER, 0, 300)
    t.product(310, (330, 340))
    t.op("aten::relu", 500, 520, **float_inputs([64, 16]))
    t.launch(505, 510, kernel=(515, 525))
    t.product(530, (550, 560))
    whole, without = (
        predict(t.trace(), mode="model", edit=edit).results[0]
        for edit in ((), ("remove=aten::relu",))
    )
    given = [
        float(r.timeline.graph.nodes_.duration_us[r.timeline.graph.nodes_.row >= 0].sum())
        for r in (whole, without)
    ]
    assert given[0] - given[1] == pytest.approx(500 - 330)
    assert _of_cause(without, Cause.DATA_LOADING) == _of_cause(whole, Cause.DATA_LOADING) > 0


def _graph_launch() -> Trace:
    t = Tiny()
    t.step(1, 0, 1000)
    t.product(10, (30, 40))
    t.launch(50, 90, kernel=[(100, 400), (500, 900)], name="volta_scudnn", call="cudaGraphLaunch")
    t.op("aten::relu", 95, 99, **float_inputs([64, 16]))
    t.launch(96, 98, kernel=(900, 905))
    return t.trace()


def test_a_graph_launch_takes_its_recorded_kernels_and_the_wait_between() -> None:
    found = predict(_graph_launch(), mode="model")
    result = found.results[0]
    assert result.step_us == pytest.approx(905 + 95, rel=0.12)
    assert result.coverage["modelled_frac"] == pytest.approx(15 / 715, abs=1e-5)
    assert result.coverage["recorded_frac"] == pytest.approx(700 / 715, abs=1e-5)
    assert result.coverage["fallback_frac"] == pytest.approx(700 / 715, abs=1e-5)
    recorded = next(row for row in result.families if row["family"] == "convolution")
    assert recorded["time_us"] == pytest.approx(700)
    waits = result.timeline.graph.nodes_.kind == NodeKind.WAIT
    waited = float(result.timeline.graph.nodes_.duration_us[waits].sum())
    assert waited == pytest.approx(result.coverage["waits_from_trace_us"], abs=0.01)
    assert 90 < waited < 110
    assert any("97.9 % of the trace's device time" in line for line in found.warnings)


def test_elsewhere_recorded_kernels_go_by_the_ratio_of_mode_transfer() -> None:
    from perfmodel.hardware import catalogue

    result = predict(_graph_launch(), mode="model", hardware=["h100-sxm"]).results[0]
    recorded = next(row for row in result.families if row["family"] == "convolution")
    own, there = catalogue.device("v100-sxm2-16gb"), catalogue.device("h100-sxm")
    taken = np.array([300.0, 400.0])
    ratio = transfer_ratio(["convolution"] * 2, ["fp32"] * 2, own, there, duration_us=taken)
    assert recorded["time_us"] == pytest.approx(float(taken @ ratio), rel=1e-3)
    assert result.coverage["modelled_frac"] == pytest.approx(15 / 715, abs=1e-5)


def test_a_recorded_kernel_says_what_it_rests_on() -> None:
    result = predict(_graph_launch(), mode="model").results[0]
    why = result.explain("volta_scudnn").to_dict()
    assert "recorded_us" in str(why)


def test_a_profile_without_samples_of_a_type_takes_those_of_another() -> None:
    usual = load_profile("h100-inference")
    lacking = Profile({key: row for key, row in usual.rows.items() if key[0] != "T5"})
    assert lacking.completed(usual).rows == usual.rows
    assert usual.completed(lacking) is usual


def test_a_trace_whose_gpu_nobody_knows_goes_to_one_that_is_known() -> None:
    t = Tiny(device="Experimental GPU 9000")
    t.step(1, 0, 500)
    t.product(10, (30, 40))
    t.launch(50, 60, kernel=(70, 170), name="volta_scudnn", call="cudaGraphLaunch")
    found = predict(t.trace(), mode="model", hardware=["h100-sxm"])
    recorded = next(row for row in found.results[0].families if row["family"] == "convolution")
    assert recorded["time_us"] == pytest.approx(100)
    assert any("their GPU is not known" in line for line in found.warnings)


REAL: dict[str, tuple[float, float, float]] = {
    "traces/inference/h100_qwen1.5-0.5b.json.gz": (8, 8, 0.703),
    "traces_2/inference/h100_bert-small.json.gz": (8, 30, 1.0),
    "traces_2/inference/mi300x_bert-small.json.gz": (8, 30, 1.0),
    "traces_2/graphs/mi300x_sglang_qwen3_decode.json.gz": (5, 5, 0.011),
    "traces/inference/h100_timesformer.json.gz": (5, 5, 1.0),
    "traces/inference/mi300x_qwen1.5-0.5b.json.gz": (10, 12, 0.694),
    "traces/train/v100_resnet50_workers0_a.json.gz": (5, 8, 1.0),
    "traces/train/v100_resnet50_workers4_a.json.gz": (5, 5, 1.0),
    "traces_2/dlrm_meta/v100x2_trace_diff_test.json.gz": (10, 8, 0.651),
    "traces_2/graphs/mi300x_xdit_flux1_sage.json.gz": (10, 10, 0.147),
}
"""Shared traces of single ranks on GPUs of the catalogue: bounds on the errors of step and
GPU-active time in percent, and the share of device time that follows from shapes."""


def _predicted(reference: Path, name: str, **options: Any) -> Prediction:
    return predict(read(reference / name), mode="model", **options)


@pytest.mark.parametrize("name", slow_but(4, REAL))
def test_real_traces_on_their_own_device(reference: Path, name: str) -> None:
    step_pct, active_pct, share = REAL[name]
    result = _predicted(reference, name).results[0]
    measured = result.rank.measured
    assert measured is not None
    assert abs(result.step_us / measured["step_us"] - 1) * 100 < step_pct
    assert abs(result.rank.gpu_active_us / measured["gpu_active_us"] - 1) * 100 < active_pct
    assert result.coverage["modelled_frac"] == pytest.approx(share, abs=1e-3)


def test_a_trace_that_names_no_gpu_says_so(reference: Path) -> None:
    name = "traces_2/graphs/vllm_decode_full_graph.json.gz"
    with pytest.raises(Exception, match="does not name its GPU"):
        _predicted(reference, name)
    found = _predicted(reference, name, hardware=["mi300x"])
    assert found.results[0].step_us == pytest.approx(19_100, rel=0.1)
