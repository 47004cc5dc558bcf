"""A GPU at another clock: which of its figures follow."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.hardware.parts import Device

FOLLOWING = (
    *("fp32_tflop_per_s", "fp32_matrix_tflop_per_s", "tf32_tflop_per_s", "fp16_tflop_per_s"),
    *("bf16_tflop_per_s", "fp8_tflop_per_s", "fp4_tflop_per_s", "int8_tflop_per_s"),
    *("l2_gb_per_s", "base_mhz", "max_sustained_mhz"),
)
"""Figures of a GPU that go with `boost_mhz`, at which its peaks are stated; those of memory and
links have clocks of their own."""


def following(device: Device, ratio: float) -> dict[str, float]:
    """What becomes of them where the clock is `ratio` times what it was."""
    held = {name: getattr(device, name) for name in FOLLOWING}
    return {name: ratio * value for name, value in held.items() if value is not None}


def at_clock(device: Device, ratio: float) -> Device:
    """`device` with `ratio` times its clock and all that follows it."""
    return replace(device, boost_mhz=ratio * device.boost_mhz, **following(device, ratio))  # type: ignore[arg-type]
