"""A device as learned models see it: features of its description, never its name.

A device that was made from one of the catalogue by changing values (half the bandwidth, another
clock) is answered for as that one (`perfmodel.hardware.originals`), times what physics makes of the
change: measurements hold no such pairs, and a nearest measured device that changes with a value
would make times fall where hardware gets worse.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.cost.coefficients import coefficients
from perfmodel.hardware import Device

Description = Mapping[str, float]

_KERNELS_OF = {"12.0": "8.9", "12.1": "8.9"}
"""Compute capabilities that run another's kernels. Workstation and GeForce Blackwell have neither
products of warp groups nor tensor memory (NVIDIA, PTX ISA: `wgmma` is of sm_90a, `tcgen05` of
sm_100a and sm_103a), and the shared memory and threads of Ada's multiprocessors."""

_USUAL_SHARED_BYTES = 65_536
_USUAL_THREADS = 2048


def kernels_of(device: Device) -> str:
    """The compute capability that `device`'s kernels are written for; "0" where it has none."""
    own = device.compute_capability or "0"
    return _KERNELS_OF.get(own, own)


def describe(device: Device) -> dict[str, float]:
    """Logarithms of rates per clock and multiprocessor, of cache, power and limits."""
    clocks = device.sm_count * device.boost_mhz
    return {
        "capability": float(kernels_of(device)),
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


_COUNTS = [(name, 0.5 if name == "w_per_tflop" else 1.0) for name in COLUMNS]
"""Boards of one chip differ more in their power limits than in how their kernels behave."""
SAME = 1e-3
"""The distance below which a device is the one that was measured."""
_ONE_CHIP, _UNRELATED = 0.15, 0.45
_MIN_BLEND = 0.5


def distance(one: Description, other: Description) -> float:
    """The largest difference of any feature; 0 for the same device."""
    return max([counts * abs(one[name] - other[name]) for name, counts in _COUNTS])


def same_maker(one: Description, other: Description) -> bool:
    """Whether both devices run the libraries of one maker."""
    return one["is_rocm"] == other["is_rocm"]


def similarity(away: float) -> float:
    """How far devices at that distance behave alike: 1 for boards of one chip, 0 for unrelated."""
    return min(1.0, max(0.0, (_UNRELATED - away) / (_UNRELATED - _ONE_CHIP)))


def interval_blend(away: float) -> float:
    """How far an interval is that of a device left out: 0 where the device itself was measured,
    half for boards of one chip (assumed), 1 for unrelated devices."""
    return 0.0 if away < SAME else 1.0 - (1.0 - _MIN_BLEND) * similarity(away)


_C = coefficients("gpu.reductions")


def transferred_log_factors(
    factors: Floats, on_chip_frac: Floats, near: Description, own: Description
) -> Floats:
    """Log factors `[n]` of a device like `near`, as one like `own` has them, whose memory may be
    slower for its multiprocessors.

    What kernels take in addition to their base is then the multiprocessors' time, which is shorter
    by their arithmetic: the slower memory lengthens the base alone, but for `on_chip_frac` of it,
    and hides the rest in part. What a faster memory shows of it was hidden on `near`: nothing is
    changed.
    """
    slower = np.exp(_balance(near) - _balance(own))
    ratio = on_chip_frac + (1.0 - on_chip_frac) / max(slower, 1.0)
    power = _C.together_exponent
    longer = np.log1p(ratio**power * np.expm1(power * np.maximum(factors, 0.0))) / power
    return np.asarray(longer + np.log1p(ratio * np.expm1(np.minimum(factors, 0.0))))


def _balance(device: Description) -> float:
    """Logarithm of the bytes that its memory moves while its multiprocessors do one operation."""
    return device["bytes_per_clock"] - device["flop_per_clock"]
