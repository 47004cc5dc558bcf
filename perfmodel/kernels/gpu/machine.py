"""A device's rates as kernels meet them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfmodel.hardware import Device
from perfmodel.ops.spec import Floats

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
