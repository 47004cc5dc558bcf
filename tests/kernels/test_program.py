"""Kernels inside a program find nothing in the cache."""

from __future__ import annotations

import pytest

from perfmodel.duration import durations_of
from perfmodel.hardware import device
from perfmodel.kernels.gpu.memory import ACHIEVED_FRAC
from perfmodel.kernels.gpu.program import STRIDED
from perfmodel.kernels.gpu.streaming import START_US
from perfmodel.ops.rows import Rows

H100 = device("h100-sxm")
ADD = {"op": "add", "rows": 2048, "cols": 1024, "dtype": "bf16"}
MOVED_US = 3 * 2048 * 1024 * 2 / (ACHIEVED_FRAC * H100.hbm_gb_per_s * 1e3)


def _us(**changes: object) -> float:
    return float(durations_of(Rows.of([ADD | changes]), H100).duration_us[0])


def test_operands_move_from_and_to_memory_once() -> None:
    assert _us() == pytest.approx(START_US + MOVED_US)


def test_called_over_and_over_they_stay_in_the_cache() -> None:
    rows = Rows.of([ADD | {"timing": "cuda_graph_replay"}])
    assert durations_of(rows, H100).duration_us[0] < _us()


def test_operands_that_do_not_lie_alike_take_longer() -> None:
    copy = {"op": "copy", "elements": 2048 * 1024, "dtype": "bf16"}
    plain, strided = (
        float(durations_of(Rows.of([copy | {"strided": flag}]), H100).duration_us[0])
        for flag in (0, 1)
    )
    assert strided - START_US == pytest.approx(STRIDED * (plain - START_US))


def test_the_interval_moves_along() -> None:
    found = durations_of(Rows.of([ADD]), H100)
    assert found.low_us[0] < found.duration_us[0] < found.high_us[0]
