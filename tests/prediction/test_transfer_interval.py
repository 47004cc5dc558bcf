"""Intervals of transferred steps."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny import Tiny

from perfmodel.ops.families import COMPUTE_BOUND, MEMORY_BOUND
from perfmodel.prediction import predict
from perfmodel.prediction.transferred import HOST_SPREAD, RATIO_SPREAD
from perfmodel.trace import read

ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>"


def _bounds(kernel: str, kernel_us: float = 99_970) -> tuple[float, float]:
    """Low and high over predicted, of a step that waits for one kernel."""
    t = Tiny()
    t.step(1, 0, 100_000)
    t.op("aten::mm", 1, 9)
    t.launch(2, 4, kernel=(5, 5 + kernel_us), name=kernel)
    t.call("cudaDeviceSynchronize", 10, 12 + kernel_us)
    result = predict(t.trace(), hardware=["a100-sxm-80gb"]).results[0]
    assert result.low_us is not None
    assert result.high_us is not None
    return result.low_us / result.step_us, result.high_us / result.step_us


@pytest.mark.parametrize(
    ("kernel", "kind"), [("volta_sgemm_128x64_nn", COMPUTE_BOUND), (ADD, MEMORY_BOUND)]
)
def test_a_step_of_one_kernel_is_as_uncertain_as_its_ratio(kernel: str, kind: str) -> None:
    low, high = _bounds(kernel)
    assert low == pytest.approx(1 / RATIO_SPREAD[kind], rel=0.05)
    assert high == pytest.approx(RATIO_SPREAD[kind], rel=0.05)


def test_host_work_is_as_uncertain_as_another_hosts() -> None:
    low, high = _bounds(ADD, kernel_us=10)
    assert low == pytest.approx(1 / HOST_SPREAD, rel=0.03)
    assert high == pytest.approx(HOST_SPREAD, rel=0.03)


def test_qwen_on_both_machines_lies_within(reference: Path) -> None:
    """The one pair of traces of the same model on two machines, both ways."""
    folder = reference / "traces" / "inference"
    traces = {
        "h100-sxm": read(folder / "h100_qwen1.5-0.5b.json.gz"),
        "mi300x": read(folder / "mi300x_qwen1.5-0.5b.json.gz"),
    }
    period_us = {name: predict(trace).results[0].step_us for name, trace in traces.items()}
    for source, target in (("h100-sxm", "mi300x"), ("mi300x", "h100-sxm")):
        found = predict(traces[source], hardware=[target]).results[0]
        assert found.low_us is not None
        assert found.high_us is not None
        assert found.low_us < period_us[target] < found.high_us
        assert found.high_us / found.low_us < 1.7
