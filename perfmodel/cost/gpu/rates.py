"""A device's rates as kernels meet them: compute under a power limit, memory and cache by size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfmodel.arrays import Floats
from perfmodel.hardware import Device
from perfmodel.ops.storage import item_bytes

_FP32_TFLOP_PER_S_PER_W = {
    "maxwell": 0.05,
    "pascal": 0.065,
    "volta": 0.054,
    "turing": 0.054,
    "ampere": 0.09,
    "ada": 0.2,
    "hopper": 0.2,
    "blackwell": 0.2,
    "cdna": 0.12,
    "cdna2": 0.15,
    "cdna3": 0.25,
    "cdna4": 0.3,
}
"""Long fp32 products per watt of the limit, by generation.

Pascal to Turing and CDNA from the best products in sitar-lab/NeuSight@6945927d (P4 4.6 TFLOP/s at
75 W, T4 3.6 at 70 W, V100 13.4 at 250 W); Ampere is a lower bound (17 at 250 W, not limited);
later ones are assumed from their process.
"""
_USUAL = 0.1


_NARROW_FLOP_PER_S_PER_W = {"ada": 0.58e12}
"""The same for 16-bit products, twice as much for 8-bit ones, where a limit has been seen:
ai-dynamo/aiconfigurator@095f58a51c, L40S at 350 W, 0.51 to 0.63 of its peak."""


def sustained_flop_per_us(device: Device, dtypes: Sequence[str], peak: Floats) -> Floats:
    """`peak` `[n]` (FLOP per microsecond), or what the power limit leaves of it."""
    architecture = device.architecture or ""
    limits = {"fp32": _FP32_TFLOP_PER_S_PER_W.get(architecture, _USUAL) * 1e12}
    narrow = _NARROW_FLOP_PER_S_PER_W.get(architecture)
    if narrow is not None:
        sizes = dict(zip(set(dtypes), item_bytes(list(set(dtypes))), strict=True))
        limits |= {
            dtype: narrow * 2.0 / max(size, 1.0) for dtype, size in sizes.items() if dtype != "fp32"
        }
    per_w = np.array([limits.get(dtype, np.inf) for dtype in dtypes])
    return np.minimum(peak, per_w * device.tdp_w * 1e-6)


COMPUTE_DTYPE = {
    "fp8_static": "fp8",
    "fp8_block": "fp8",
    "nvfp4": "fp4",
    "int8_wo": "fp16",
    "int4_wo": "fp16",
    "int4": "fp16",
}
"""The type that the matrix units multiply in, where it is not the one that is stored."""

_L2_BYTES_PER_CLOCK_PER_SM = 24.0
"""What the L2 delivers to one multiprocessor: 64 in the design (32 before Ampere), of which
kernels reach about 40 %. Source: Lin et al. 2022, V100 2289 GB/s and A100 2270 to 3700 GB/s."""
_SPECIAL_PER_SM_PER_CLOCK = 16.0
_ISSUED_PER_SM_PER_CLOCK = {"cuda": 128.0, "rocm": 64.0}
"""Lanes: an instruction for each of four warps of 32 (NVIDIA since Volta), one for a wave of 64 in
four clocks on each of four units (CDNA). Source: the makers' descriptions, recalled."""


def matrix_flop_per_us(device: Device, dtypes: Sequence[str]) -> Floats:
    """Peak of matrix products per row, FLOP per microsecond."""
    rates = {dtype: _matrix_rate(device, dtype) for dtype in set(dtypes)}
    return np.array([rates[dtype] for dtype in dtypes])


def _matrix_rate(device: Device, dtype: str) -> float:
    computed = COMPUTE_DTYPE.get(dtype, dtype)
    try:
        return device.matrix_tflop_per_s(computed) * 1e6
    except KeyError:
        return device.fp32_tflop_per_s * 1e6


def vector_flop_per_us(device: Device) -> float:
    """Peak of fp32 multiply-adds on the vector units, FLOP per microsecond."""
    return device.fp32_tflop_per_s * 1e6


def special_per_us(device: Device) -> float:
    """Exponentials, roots and divisions per microsecond."""
    return device.sm_count * _SPECIAL_PER_SM_PER_CLOCK * device.boost_mhz


def issued_per_us(device: Device) -> float:
    """Instructions of a lane that are issued per microsecond, whatever they do."""
    return device.sm_count * _ISSUED_PER_SM_PER_CLOCK[device.target] * device.boost_mhz


def hbm_bytes_per_us(device: Device) -> float:
    """Peak of the device memory, bytes per microsecond."""
    return device.hbm_gb_per_s * 1e3


def stream_bytes_per_us(device: Device) -> float:
    """What long streams of reads and writes reach of it, bytes per microsecond."""
    return device.stream_gb_per_s * 1e3


def l2_bytes_per_us(device: Device) -> float:
    """What the L2 delivers, bytes per microsecond; at least twice the memory's peak."""
    designed = device.sm_count * _L2_BYTES_PER_CLOCK_PER_SM * device.boost_mhz
    return max(designed, 2.0 * hbm_bytes_per_us(device))


def cache_bytes(device: Device) -> float:
    """The last cache before the memory: the L2, or the one behind it."""
    return float(device.llc_bytes or device.l2_bytes)


_RESIDENT_UP_TO = 0.5
_GONE_FROM = 1.25
"""Working sets, as multiples of the cache: below the first all is found there on the next use,
above the second nothing is."""


def missed_share(working_set_bytes: Floats, device: Device) -> Floats:
    """Share of the bytes that the cache does not hold from their last use, 0 to 1."""
    fill = working_set_bytes / cache_bytes(device)
    return np.clip((fill - _RESIDENT_UP_TO) / (_GONE_FROM - _RESIDENT_UP_TO), 0.0, 1.0)


def bound_us(total_bytes: Floats, device: Device) -> Floats:
    """The least time in which `total_bytes` can move: at the memory's peak, or the L2's where
    they fit in the cache."""
    missed = missed_share(total_bytes, device)
    at_l2 = total_bytes / (2.0 * l2_bytes_per_us(device))
    return np.maximum(at_l2, missed * total_bytes / hbm_bytes_per_us(device))


def transfer_us(total_bytes: Floats, device: Device) -> Floats:
    """What moving `total_bytes` once usually takes, without a kernel's fixed cost."""
    missed = missed_share(total_bytes, device) * total_bytes
    return np.maximum(total_bytes / l2_bytes_per_us(device), missed / stream_bytes_per_us(device))
