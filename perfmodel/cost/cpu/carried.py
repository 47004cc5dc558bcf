"""A CPU of which nothing was measured: what was measured on another, as the figures of both say.

Rates go with peaks and bandwidths, times with the speed of one thread, those of vectors with the
peak of one core. What a share of threads means on two cores is not carried.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache

from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.cpu.call import ALONE, Parameter, values_of
from perfmodel.cost.cpu.drift import drifted_values, interval_ratio
from perfmodel.hardware import Device
from perfmodel.hardware.catalogue import device as catalogue_device
from perfmodel.hardware.catalogue import host

MEASURED = "cpu-epyc"
"""The CPU of the catalogue that was calibrated."""
_C = coefficients("cpu.carried")


@cache
def measured() -> Device:
    """The CPU that others are told by."""
    return catalogue_device(MEASURED)


def _clock_mhz(device: Device) -> float:
    return device.base_mhz or device.boost_mhz


def _core_peak(device: Device) -> float:
    return device.fp32_tflop_per_s / device.sm_count


def _caches(device: Device) -> float:
    return device.sm_count * _clock_mhz(device)


def _memory(device: Device) -> float:
    return device.hbm_gb_per_s


def _thread(device: Device) -> float:
    if device.usual_host is not None:
        return host(device.usual_host).single_thread_ratio
    known = measured()
    return _thread(known) * _clock_mhz(device) / _clock_mhz(known)


_RATES: Mapping[str, Callable[[Device], float]] = {
    "core_gflop_per_s": _core_peak,
    "l2_gb_per_s": _caches,
    "llc_gb_per_s": _caches,
    "dram_gb_per_s": _memory,
    "cold_gb_per_s": _memory,
}
_TIMES: Mapping[str, Callable[[Device], float]] = {
    "element_ns": _core_peak,
    "mac_ns": _core_peak,
    "vector_mac_ns": _core_peak,
    "bf16_mac_ns": _core_peak,
}
"""What goes with a figure, what against it; other times go against the speed of a thread."""
_OWN = ("parallel_frac",)


def is_carried(family: str, device: Device) -> bool:
    """Whether `device` has no calibration of its own for `family`."""
    tables = device.calibration
    return not any(key.removeprefix(ALONE).partition(".")[0] == family for key in tables)


def values_on(
    family: str, section: str, parameters: Sequence[Parameter], device: Device, alone: bool = False
) -> dict[str, float]:
    """`values_of` where `device` was calibrated, else those of the measured CPU, carried over."""
    if not is_carried(family, device):
        return values_of(family, section, parameters, device, alone)
    values = values_of(family, section, parameters, measured(), alone)
    carried = {each.name: _carried(each, values[each.name], section, device) for each in parameters}
    return drifted_values(carried, device)


def _carried(parameter: Parameter, value: float, section: str, device: Device) -> float:
    name, known = parameter.name, measured()
    if name in _OWN or parameter.from_figures:
        return parameter.default_on(device, section)
    if figure := _RATES.get(name):
        value *= figure(device) / figure(known)
    elif name.endswith(("_us", "_ns")):
        figure = _TIMES.get(name, _thread)
        value *= figure(known) / figure(device)
    return min(max(value, parameter.low), parameter.high)


def spread_of(device: Device, spread_frac: float, carried: bool) -> float:
    """Bound of a 90 % interval over its middle: `interval_ratio`, wider by what carrying costs."""
    ratio = interval_ratio(device, spread_frac)
    if not carried:
        return ratio
    return math.exp(math.hypot(math.log(ratio), math.log1p(_C.spread_frac)))
