"""A device as learned models see it: figures of its description, never its name.

A device that was made from one of the catalogue by changing figures (half the bandwidth, another
clock) is answered for as that one (`perfmodel.hardware.originals`), times what physics makes of the
change: measurements hold no such pairs, and a nearest measured device that changes with a figure
would make times fall where hardware gets worse.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

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


def distance(one: Description, other: Description) -> float:
    """The largest difference of any figure; 0 for the same device."""
    return max([counts * abs(one[name] - other[name]) for name, counts in _COUNTS])


def nearest(description: Description, known: Sequence[Description]) -> tuple[Description, float]:
    """The most similar of `known`, and its distance."""
    away, place = min((distance(description, each), i) for i, each in enumerate(known))
    return known[place], away


def usual(known: Sequence[Description]) -> Description:
    """The median of each figure."""
    return {name: statistics.median([each[name] for each in known]) for name in COLUMNS}


def same_maker(one: Description, other: Description) -> bool:
    """Whether both devices run the libraries of one maker."""
    return one["is_rocm"] == other["is_rocm"]


_SAME = 0.15
_STRANGE = 0.45


def kinship(away: float) -> float:
    """How much of a known device's own behaviour holds at that distance: 1 to 0."""
    return min(1.0, max(0.0, (_STRANGE - away) / (_STRANGE - _SAME)))


_MEASURED = 1e-3
_MIN_UNLIKE = 0.5


def unlikeness(away: float) -> float:
    """How far an interval is that of a device left out: 0 where the device itself was measured.

    Boards of one chip are half way (assumed), devices that are not alike all of it.
    """
    if away < _MEASURED:
        return 0.0
    return _MIN_UNLIKE + (1.0 - _MIN_UNLIKE) * (1.0 - kinship(away))
