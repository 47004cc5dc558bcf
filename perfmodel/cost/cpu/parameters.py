"""Calibrated parameters of the CPU models: defaults, and what a device file holds.

A device file may hold tables `[calibration.FAMILY]` and `[calibration."FAMILY.OP"]`, an op that is
not forward with its direction (`vector.relu`, `embedding.embedding_bag_bwd`); an op's value goes
before its family's, and that before what the reference CPU's tables say, scaled. All are of ops
within a program, where heap, caches and threads are in another state than in calls of one op.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from perfmodel.base.schema import unknown_key
from perfmodel.cost.coefficients import coefficients
from perfmodel.errors import ModelError
from perfmodel.hardware import Device
from perfmodel.hardware.catalogue import device as catalogue_device
from perfmodel.hardware.catalogue import host
from perfmodel.ops.spec import OPS

FROM_FIGURES = "from_figures"
Scale = Callable[[Device, float], float]
"""From a device and a value per core, or a share of a figure, to a parameter's value on it."""
_SHARE, _MOST = "share", 1e6
"""The unit of parameters that are at most 1, and what no other is above."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One number of a model, above 0."""

    name: str
    value: float | None
    """Its default; None: what the reference CPU was fitted to."""
    most: float
    scale: Scale | None
    from_figures: bool
    """Whether figures of a device say more than what was measured on another."""


def parameters(name: str, scales: Mapping[str, Scale] | None = None) -> tuple[Parameter, ...]:
    """The coefficients of a group, `cpu.memory`, that a calibration may hold: those without a value
    of their own, and those that say whether it follows from a device's figures."""
    scales = scales or {}
    return tuple(
        Parameter(
            key,
            entry.get("value"),
            most=1.0 if entry["unit"] == _SHARE else _MOST,
            scale=scales.get(key),
            from_figures=entry.get(FROM_FIGURES, False),
        )
        for key, entry in coefficients(name).entries.items()
        if "value" not in entry or FROM_FIGURES in entry
    )


_C, _CACHES = coefficients("cpu.call"), coefficients("cpu.caches")


def _from_cache(name: str, known: Mapping[str, float]) -> Scale:
    """A device's figure, else what a core of its generation, or of its maker, gets; of unknown
    makers as little as any."""

    def on(device: Device, each: float) -> float:
        named = (known.get(of or "") for of in (device.architecture, device.maker))
        core = next(filter(None, named), min(known.values()))
        return getattr(device, name) or each * core * device.sm_count

    return on


def by_vectors(device: Device, each: float) -> float:
    """A time for each element, by what a core's vectors multiply and add in a clock."""
    clock_mhz = device.base_mhz or device.boost_mhz
    return each * device.sm_count * clock_mhz / device.fp32_tflop_per_s


def peak_tflop_per_s(device: Device, dtype: str) -> float:
    """Of all cores at their boost clock; the catalogue's figures are those at the base clock."""
    rate = device.matrix_tflop_per_s(dtype)
    if dtype == "int8":  # which vectors multiply by themselves, too
        rate = max(rate, coefficients("cpu.matmul").int8_without_units * device.fp32_tflop_per_s)
    return rate * device.boost_mhz / (device.base_mhz or device.boost_mhz)


CALL_PARAMETERS = parameters("cpu.overhead")
CROWDING_PARAMETERS = parameters("cpu.crowding")
"""Between two runs of an op its code and what describes its tensors leave the caches, by how much
the rest of the step touches."""
THREAD_PARAMETERS = parameters("cpu.threads")
"""Of families whose ops split a part of their work."""
RATIO_PARAMETERS = parameters("cpu.ratio")
"""What `fit device` fits to whole steps."""
MEMORY_PARAMETERS = parameters(
    "cpu.memory",
    {
        "l2_gb_per_s": _from_cache("l2_gb_per_s", _CACHES["l2_gb_per_s"]),
        "llc_gb_per_s": _from_cache("llc_gb_per_s", _CACHES["llc_gb_per_s"]),
        "dram_gb_per_s": lambda device, share: share * device.hbm_gb_per_s,
        "page_us": lambda device, each: each / min(device.sm_count, _C.most_faulting_threads),
    },
)
(SPREAD,) = parameters("cpu.interval")


def section_of(family: str, op: str, direction: str = "fwd") -> str:
    """Name of the table of an op's own values."""
    return f"{family}.{op}" if direction == "fwd" else f"{family}.{op}_{direction}"


@cache
def reference_cpu() -> Device:
    """The calibrated CPU of the catalogue, whose parameters stand for those of a CPU without."""
    return catalogue_device("cpu-epyc")


@cache
def _families() -> frozenset[str]:
    return frozenset(OPS[name].family for name in OPS)


def parameters_on(
    family: str, section: str, parameters: Sequence[Parameter], device: Device
) -> dict[str, float]:
    """Every parameter of `section`, an op of `family`, on `device`: what its calibration holds,
    else those of the reference CPU: rates by what the data sheets of both say, times by the speed
    of a thread.

    Raises `ModelError` where the calibration holds a name that there is not, a value that cannot
    be, or a family that there is not: it would silently change nothing.
    """
    for table in device.calibration:
        if (named := table.partition(".")[0]) not in _families():
            unknown = unknown_key(named, sorted(_families()))
            raise ModelError(f"{device.name}: calibration.{table}: {unknown}")
    known, reference = {each.name: each for each in parameters}, reference_cpu()
    values = {name: each.value for name, each in known.items() if each.value is not None}
    for table in (family, section):
        values |= reference.calibration.get(table, {})
    slower = _thread_speed(reference) / _thread_speed(device)
    for name, each in known.items():
        if each.from_figures and each.value is not None:
            values[name] = each.value if each.scale is None else each.scale(device, each.value)
            continue
        if each.scale is not None:
            values[name] *= each.scale(device, 1.0) / each.scale(reference, 1.0)
        if name.endswith(("_us", "_ns")):
            values[name] *= slower
    for table in (family, section):
        for name, value in device.calibration.get(table, {}).items():
            where = f"{device.name}: calibration.{table}"
            if name not in known:
                raise ModelError(f"{where}: {unknown_key(name, known)}")
            if not 0.0 < value <= known[name].most:
                most = f"above 0, at most {known[name].most:g}"
                raise ModelError(f"{where}: {name}: expected {most}, got {value:g}")
            values[name] = value
    return values


def _thread_speed(device: Device) -> float:
    """Of one thread, as hosts of the catalogue have it; of an unknown host by its clock."""
    if device.usual_host is not None:
        return host(device.usual_host).single_thread_ratio
    clock_mhz, reference = device.base_mhz or device.boost_mhz, reference_cpu()
    return _thread_speed(reference) * clock_mhz / (reference.base_mhz or reference.boost_mhz)


def spread_of(spread_frac: float, calibrated: bool) -> float:
    """Bound of a 90 % interval over its middle; wider for a CPU that was not calibrated."""
    more = 0.0 if calibrated else math.log1p(coefficients("cpu.unmeasured").spread_frac)
    return math.exp(math.hypot(math.log1p(spread_frac), more))
