"""A device as learned models see it: figures of its description, never its name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from perfmodel.hardware import Device

Description = Mapping[str, float]

_USUAL_SHARED_BYTES = 65_536
_USUAL_THREADS = 2048

GENERAL = ("w_per_tflop", "peak_frac")
"""Figures that may tell devices apart which no measurement was seen of."""
GENERAL_OF_PART = {
    "matmul_half": ("is_asynchronous",),
    "matmul_quantised": ("is_asynchronous",),
}
"""The same for single parts. Narrow products rest on four chips: by continuous figures trees would
tell each from the others, while which instructions load and multiply is a matter of generation."""
_ASYNCHRONOUS = (9.0, 12.0)
"""Compute capabilities, from and below, whose matrix units work by themselves on tiles that bulk
copies bring. Source: NVIDIA, PTX ISA: `wgmma` (9.0), `tcgen05` (10.0 to 11.0); 12.0 has neither."""


def describe(device: Device) -> dict[str, float]:
    """Logarithms of rates per clock and multiprocessor, of cache, power and limits."""
    clocks = device.sm_count * device.boost_mhz
    capability = float(device.compute_capability or 0.0)
    return {
        "capability": capability,
        "is_asynchronous": float(_ASYNCHRONOUS[0] <= capability < _ASYNCHRONOUS[1]),
        "is_rocm": float(device.target == "rocm"),
        "sms": math.log(device.sm_count),
        "flop_per_clock": math.log(device.fp32_tflop_per_s * 1e6 / clocks),
        "bytes_per_clock": math.log(device.hbm_gb_per_s * 1e3 / clocks),
        "l2_per_sm": math.log(device.l2_bytes / device.sm_count),
        "mhz": math.log(device.boost_mhz),
        "w_per_tflop": math.log(device.tdp_w / device.fp32_tflop_per_s),
        "peak_frac": math.log(device.gemm_peak_frac),
        "shared_per_sm": math.log(device.shared_bytes_per_sm or _USUAL_SHARED_BYTES),
        "threads_per_sm": math.log(device.max_threads_per_sm or _USUAL_THREADS),
    }


def general_figures(part: str) -> tuple[str, ...]:
    """Of a device, what the trees of the part may see that answer for devices never seen."""
    return GENERAL_OF_PART.get(part, GENERAL)


COLUMNS = (
    "capability",
    "is_rocm",
    "sms",
    "flop_per_clock",
    "bytes_per_clock",
    "l2_per_sm",
    "mhz",
    "w_per_tflop",
    "peak_frac",
    "shared_per_sm",
    "threads_per_sm",
)


_COUNTS = {"w_per_tflop": 0.5}
"""Boards of one chip differ more in their power limits than in how their kernels behave."""


def distance(one: Description, other: Description) -> float:
    """The largest difference of any figure; 0 for the same device."""
    return max(_COUNTS.get(name, 1.0) * abs(one[name] - other[name]) for name in COLUMNS)


def nearest(description: Description, known: Sequence[Description]) -> tuple[Description, float]:
    """The most similar of `known`, and its distance."""
    away, place = min((distance(description, each), i) for i, each in enumerate(known))
    return known[place], away


_SAME = 0.15
_STRANGE = 0.45


def kinship(away: float) -> float:
    """How much of a known device's own behaviour holds at that distance: 1 to 0."""
    return min(1.0, max(0.0, (_STRANGE - away) / (_STRANGE - _SAME)))
