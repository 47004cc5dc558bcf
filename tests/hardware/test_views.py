"""Parts as tables for notebooks."""

from __future__ import annotations

import pytest

from perfmodel import hardware
from perfmodel.errors import HardwareError


def test_a_frame_of_devices() -> None:
    frame = hardware.frame("nvidia ampere")
    assert set(frame.index) == {it.name for it in hardware.find("nvidia ampere")}
    assert frame.loc["a100-sxm-80gb", "hbm_gb_per_s"] == 2039
    assert frame.loc["a100-sxm-80gb", "usual_node"] == "dgx-a100-80gb"
    assert frame["fp8_tflop_per_s"].isna().all()


@pytest.mark.parametrize("kind", hardware.KINDS)
def test_a_frame_of_each_kind(kind: str) -> None:
    assert sorted(hardware.frame(kind=kind).index) == hardware.names(kind)


def test_a_frame_of_nothing() -> None:
    assert hardware.frame("no such thing").empty
    with pytest.raises(HardwareError, match="unknown kind 'gpu'"):
        hardware.frame(kind="gpu")
