"""A device's rates as kernels meet them: compute under a power limit, memory and cache by size."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Floats, clipped, of_texts
from perfmodel.cost.coefficients import coefficients
from perfmodel.hardware import Device
from perfmodel.hardware.generations import nearest_known
from perfmodel.hardware.originals import original
from perfmodel.ops.dtypes import item_bytes

USUAL = "usual"
_C = coefficients("gpu.rates")
SECTOR_BYTES, LANES = _C.sector_bytes, _C.table("lanes")


def sustained_flop_per_us(device: Device, dtypes: Sequence[str], peak: Floats) -> Floats:
    """`peak` `[n]` (FLOP per microsecond), or what the power limit leaves of it."""
    usual = _C.usual_fp32_tflop_per_s_per_w
    fp32 = _of_generation(device, _C.table("fp32_tflop_per_s_per_w"), usual) * 1e12
    narrow = _of_generation(device, _C.table("narrow_flop_per_s_per_w"), np.inf)

    def per_w(dtype: str) -> float:
        return fp32 if dtype == "fp32" else narrow * 2.0 / max(float(item_bytes([dtype])[0]), 1.0)

    return np.minimum(peak, of_texts(dtypes, per_w) * device.tdp_w * 1e-6)


def hot_us(flop: Floats, dtypes: Sequence[str], device: Device) -> Floats:
    """Microseconds `[n]` that `flop` of matrix products in fewer bits than 32 take on a board that
    has long been at its power limit; nothing in fp32, and where no such board was seen.

    A lower clock takes less voltage, so energy per FLOP falls with the rate: here in proportion,
    between not at all (at the least voltage) and with its square. Then the limit goes with the
    square of the rate, and the share of the peak that it leaves is one for all types.
    """
    flop_per_j = _of_generation(device, _C.table("flop_per_j"), np.inf)
    of_peak = math.sqrt(flop_per_j * device.tdp_w / (device.matrix_tflop_per_s("fp16") * 1e12))
    usual = of_texts(dtypes, lambda dtype: np.inf if dtype == "fp32" else of_peak)
    return np.asarray(flop / (usual * matrix_flop_per_us(device, dtypes)))


def _of_generation(device: Device, figures: Mapping[str, float], usual: float) -> float:
    known = nearest_known(device.architecture, figures)
    return usual if known is None else figures[known]


COMPUTE_DTYPE = {
    "fp8_static": "fp8",
    "fp8_block": "fp8",
    "nvfp4": "fp4",
    "int8_wo": "fp16",
    "int4_wo": "fp16",
    "int4": "fp16",
}
"""The type that the matrix units multiply in, where it is not the one that is stored."""


def matrix_flop_per_us(device: Device, dtypes: Sequence[str]) -> Floats:
    """Peak of matrix products per row, FLOP per microsecond."""
    return of_texts(dtypes, lambda dtype: _matrix_rate(dtype, device))


@lru_cache(maxsize=1024)
def _matrix_rate(dtype: str, device: Device) -> float:
    computed = COMPUTE_DTYPE.get(dtype, dtype)
    if computed in _SUMMED_IN_FP32 and _is_before_units(device):
        return device.fp32_tflop_per_s * 1e6
    return device.matrix_tflop_per_s(computed) * 1e6


def vector_flop_per_us(device: Device) -> float:
    """Peak of fp32 multiply-adds on the vector units, FLOP per microsecond."""
    return device.fp32_tflop_per_s * 1e6


_SUMMED_IN_FP32 = ("fp16", "bf16", "fp8")
"""Types whose products libraries sum in fp32 (PyTorch asks for `CUBLAS_COMPUTE_32F`), which vector
units do no faster than fp32: a P100, which doubles fp16, reaches 9.1 of 9.5, not of 19 TFLOP/s."""


def is_older(device: Device, capability: str) -> bool:
    """Whether the chip is one of NVIDIA's before that compute capability: as the catalogue's device
    is from which `device` was made, since another rate is not another chip."""
    own = original(device).compute_capability
    return device.target == "cuda" and own is not None and float(own) < float(capability)


def _is_before_units(device: Device) -> bool:
    """There 8-bit products of four elements (DP4A, from 6.1) run on the vector units (NVIDIA, CUDA
    C++ Programming Guide)."""
    return is_older(device, "7.0")


def has_matrix_units(device: Device, dtypes: Sequence[str]) -> NDArray[np.bool_]:
    """Per row, whether the chip has matrix units for the dtype, whatever was changed of it."""
    return of_texts(dtypes, lambda dtype: _has_units(dtype, device))


@lru_cache(maxsize=1024)
def _has_units(dtype: str, device: Device) -> bool:
    if _is_before_units(device):
        return False
    chip = original(device)
    least = coefficients("gpu.matmul").matrix_units_from * vector_flop_per_us(chip)
    return bool(matrix_flop_per_us(chip, [dtype])[0] > least)


def special_per_us(device: Device) -> float:
    """Exponentials, roots and divisions per microsecond."""
    known = _C.table("special_per_sm_per_clock")
    per_clock = known.get(device.compute_capability or USUAL, known[USUAL])
    return device.sm_count * per_clock * device.boost_mhz


def issued_per_us(device: Device) -> float:
    """Instructions of a lane that are issued per microsecond, whatever they do."""
    return device.sm_count * _C.table("issued_per_sm_per_clock")[device.target] * device.boost_mhz


def hbm_bytes_per_us(device: Device) -> float:
    """Peak of the device memory, bytes per microsecond."""
    return device.hbm_gb_per_s * 1e3


def stream_bytes_per_us(device: Device) -> float:
    """What long streams of reads and writes reach of it, bytes per microsecond."""
    return device.stream_gb_per_s * 1e3


def l2_bytes_per_us(device: Device) -> float:
    """What the L2 delivers, bytes per microsecond; at least twice the memory's peak."""
    designed = device.sm_count * _C.l2_bytes_per_clock_per_sm * device.boost_mhz
    return max(designed, 2.0 * hbm_bytes_per_us(device))


def cache_bytes(device: Device) -> float:
    """The last cache before the memory: the L2, or the one behind it."""
    return float(device.llc_bytes or device.l2_bytes)


def missed_share(working_set_bytes: Floats, device: Device) -> Floats:
    """Share of the bytes that the cache does not hold from their last use, 0 to 1."""
    fill = working_set_bytes / cache_bytes(device)
    up_to = _C.resident_up_to
    return clipped((fill - up_to) / (_C.gone_from - up_to), 0.0, 1.0)


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
