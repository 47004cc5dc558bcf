"""Intervals of steps: errors of a family move together, families apart."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from perfmodel.hardware import Device, cluster, device
from perfmodel.lowering.host import Profile, Statistic
from perfmodel.ops.graph import Op, OpGraph, Tensor
from perfmodel.prediction.intervals import (
    DRAWS,
    OWN_SPREAD,
    interval_of,
    model_draws,
    ratio_interval,
)
from perfmodel.prediction.result import summarise
from perfmodel.prediction.scheduled import (
    KNOWN_SOFTWARE,
    HostCosts,
    ScheduledSteps,
    schedule_shapes,
)
from perfmodel.prediction.types import MODEL

MACHINE = cluster("v100-sxm2-16gb")
LARGE = Tensor((4096, 4096))
PRODUCT, RELU = Op("aten::mm", (LARGE, LARGE)), Op("aten::relu", (Tensor((16384, 4096)),))


def _scheduled(*ops: Op, each_us: float = 1.0, half_frac: float = 0.2) -> ScheduledSteps:
    """Steps whose kernels are each known to `half_frac`."""
    one = Statistic(1, each_us, 0.0, *(each_us,) * 5, each_us)
    kinds = ("T1", "T2", "T3", "T4", "T5", "op_without_launch")
    costs = HostCosts(Profile({(kind, None, None): one for kind in kinds}), 1.0, "")
    found = schedule_shapes(OpGraph(ops), MACHINE, costs)
    taken = found.durations.duration_us
    durations = replace(
        found.durations, low_us=taken * (1 - half_frac), high_us=taken * (1 + half_frac)
    )
    return replace(found, durations=durations)


def _half_widths(found: ScheduledSteps) -> tuple[float, float]:
    """Below and above, as shares of the step."""
    step_us = float(found.timeline.step_us[0])
    low, high = _interval(found)
    return 1 - low / step_us, high / step_us - 1


def _interval(found: ScheduledSteps) -> tuple[float, float]:
    step = summarise(found.timeline, hardware="", mode=MODEL, compare=False)
    return interval_of(step.step_us, model_draws(step, found, KNOWN_SOFTWARE))


def test_kernels_of_one_family_are_wrong_together() -> None:
    for count in (1, 5):
        below, above = _half_widths(_scheduled(*[PRODUCT] * count))
        assert below == pytest.approx(0.2, abs=0.02)
        assert above == pytest.approx(0.2, abs=0.02)


def test_families_are_wrong_apart() -> None:
    product, relu = (float(_scheduled(op).timeline.step_us[0]) for op in (PRODUCT, RELU))
    times = round(product / relu)
    below, above = _half_widths(_scheduled(PRODUCT, *[RELU] * times))
    assert below == pytest.approx(0.2 / np.sqrt(2), abs=0.03)
    assert above == pytest.approx(0.2 / np.sqrt(2), abs=0.03)


def test_the_hosts_error_counts_where_the_host_decides() -> None:
    small = Op("aten::relu", (Tensor((8,)),))
    below, above = _half_widths(_scheduled(*[small] * 4, each_us=50.0))
    assert below == pytest.approx((KNOWN_SOFTWARE[1] - 1), abs=0.02)
    assert above == pytest.approx((KNOWN_SOFTWARE[1] - 1), abs=0.02)


def test_what_does_not_decide_the_step_widens_it_only_where_it_might() -> None:
    """A host that takes half of what the device does: only the device's error shows."""
    found = _scheduled(*[PRODUCT] * 3, each_us=500.0)
    assert _half_widths(found)[0] == pytest.approx(0.2, abs=0.07)


def test_the_same_interval_every_time_and_around_the_prediction() -> None:
    found = _scheduled(PRODUCT, RELU, half_frac=0.0)
    low, high = _interval(found)
    assert (low, high) == _interval(found)
    assert low <= found.timeline.step_us[0] <= high
    assert DRAWS >= 20


@dataclass(frozen=True)
class Step:
    """A step under draws, on a device."""

    step_us: float
    factors: tuple[float, ...]
    device: Device = MACHINE.node.device

    @property
    def draws_us(self) -> np.ndarray:
        return self.step_us * np.repeat(self.factors, DRAWS // len(self.factors))


def test_what_is_off_alike_in_two_steps_leaves_their_ratio_alone() -> None:
    """Both half or twice as long together: only what each is off by itself is left."""
    one, other = Step(300.0, (0.5, 2.0)), Step(100.0, (0.5, 2.0))
    expected = 3.0 / OWN_SPREAD, 3.0 * OWN_SPREAD
    assert ratio_interval(one, other) == pytest.approx(expected)
    elsewhere = replace(other, device=device("h100-sxm"))
    apart = np.hypot(np.log(4.0), np.log(OWN_SPREAD))
    expected = 3.0 * np.exp(-apart), 3.0 * np.exp(apart)
    assert ratio_interval(one, elsewhere) == pytest.approx(expected)


def test_the_ratio_of_a_step_to_itself_is_one() -> None:
    assert ratio_interval(Step(100.0, (0.5, 2.0)), Step(100.0, (0.5, 2.0))) == pytest.approx(
        (1.0, 1.0)
    )
