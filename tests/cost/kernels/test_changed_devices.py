"""Devices made by changing figures: never faster for less, as wide as what nobody measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from slow import slow_but

from benchmarks.monotone import DRAWN, WORSE, changes, drawn, predicted_us
from perfmodel import hardware
from perfmodel.cost.durations import durations_of
from perfmodel.cost.gpu.rates import capability_of
from perfmodel.cost.learned.features import describe, distance
from perfmodel.hardware.catalogue import original
from perfmodel.hardware.settings import with_settings
from perfmodel.ops.rows import Rows

DEVICES = ("a100-pcie-80gb", "h100-sxm", "mi300x", "t4")


def test_each_device_is_its_own_original() -> None:
    for device in hardware.devices():
        if device.target != "cpu":
            assert original(device).hbm_gb_per_s == device.hbm_gb_per_s, device
            assert original(device).boost_mhz == device.boost_mhz, device


@pytest.mark.parametrize("figures", WORSE.values(), ids=list(WORSE))
def test_a_board_is_known_whatever_is_halved(figures: tuple[str, ...]) -> None:
    for name in DEVICES:
        device = hardware.device(name)
        halved = {key: getattr(device, key) for key in figures}
        halved = {key: value / 2.0 for key, value in halved.items() if value is not None}
        assert original(replace(device, **halved)) == device


def test_a_chip_of_its_own_is_no_changed_one() -> None:
    own = replace(hardware.device("h100-sxm"), sm_count=100)
    assert original(own) is own


def test_a_setting_is_a_change_whatever_the_name() -> None:
    h100 = hardware.device("h100-sxm")
    assert original(with_settings(h100, ["device.tdp_w=350"])) is h100


@pytest.mark.parametrize("family", slow_but(4, DRAWN))
def test_no_kernel_is_faster_on_a_worse_device(family: str) -> None:
    compared = 0
    for what in DRAWN[family]:
        for name in DEVICES:
            generator, device = np.random.default_rng(0), hardware.device(name)
            frame = drawn(what, 12, generator, device)
            before = predicted_us(frame, device)
            for change, rows, changed in changes(what, frame, device, generator):
                if change.startswith("half"):
                    ratio = predicted_us(rows, changed) / before
                    compared += len(ratio)
                    assert ratio.min() >= 0.99, (what.op, name, change)
    assert compared >= 12 * len(DEVICES) * 4


def test_a_changed_device_is_less_certain_and_says_so() -> None:
    row = Rows.of([{"op": "linear", "m": 4096, "n": 4096, "k": 4096, "dtype": "bf16"}])
    h100 = hardware.device("h100-sxm")
    known = durations_of(row, h100)
    changed = durations_of(row, replace(h100, bf16_tflop_per_s=h100.bf16_tflop_per_s / 2.0))
    assert 1.4 < changed.duration_us[0] / known.duration_us[0] < 2.05
    half = durations_of(row, replace(h100, hbm_gb_per_s=h100.hbm_gb_per_s / 2.0))
    assert (half.high_us / half.low_us)[0] > (known.high_us / known.low_us)[0]
    assert known.source[0] == "measurements of this device or one like it"
    assert half.source[0] != known.source[0]


@pytest.mark.parametrize("name", ["rtx-pro-6000", "rtx-pro-6000-workstation", "rtx-5090", "gb10"])
def test_blackwell_without_tensor_memory_is_nearer_to_ada(name: str) -> None:
    rtx, ada, blackwell = (describe(hardware.device(each)) for each in (name, "l40s", "b200"))
    assert distance(rtx, ada) < distance(rtx, blackwell)


def test_boards_that_run_adas_kernels_have_its_figures() -> None:
    boards = map(hardware.device, ("gb10", "rtx-5090", "l40s", "h100-sxm", "mi300x"))
    assert [*map(capability_of, boards)] == ["8.9", "8.9", "8.9", "9.0", ""]


def test_long_attention_gains_on_ada_what_rates_do() -> None:
    dims = {"b": 8, "s": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128}
    row = Rows.of([{"op": "attention", "dtype": "bf16", **dims}])
    ada, rtx = hardware.device("l40s"), hardware.device("rtx-pro-6000")
    gain = durations_of(row, ada).duration_us[0] / durations_of(row, rtx).duration_us[0]
    rates = rtx.matrix_tflop_per_s("bf16") / ada.matrix_tflop_per_s("bf16")  # 1.38
    assert 0.9 * rates < gain < rtx.hbm_gb_per_s / ada.hbm_gb_per_s  # 1.85
