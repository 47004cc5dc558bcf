"""A CPU that has changed its speed since its calibration, by part of the reference work.

A device file holds what the collector's reference work took when the device was calibrated, in
`[calibration.reference]`. The same work read at another time says how much longer compute, caches,
memory and Python take then (`Drift`). `drifted` is the device at that time: each parameter of the
CPU models is a rate or a time of one of these parts and changes with it (`values_of`), and so the
answer to how much an op or a step changes follows from what it is made of.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from perfmodel.collect.records import PARTS
from perfmodel.hardware import Device

REFERENCE, DRIFT = "reference", "drift"
LEVELS = tuple(f"{part}_us" for part in PARTS)
"""Tables of `Device.calibration`: microseconds of each part then, its ratio now to then."""
SPREAD = "spread_frac"
UNKNOWN = "whether the machine has moved since its calibration is not known"
Z90 = 1.645
"""From a standard deviation to half a 90 % interval, of a normal distribution."""
STEADY = 0.1
"""assumed: the largest spread at which a reference that did not change says that nothing did."""
_PART_OF_RATE = {
    "core_gflop_per_s": "compute",
    "l2_gb_per_s": "cache",
    "llc_gb_per_s": "cache",
    "dram_gb_per_s": "memory",
    "cold_gb_per_s": "memory",
}
_PART_OF_TIME = {"near_ns": "cache", "miss_ns": "memory", "walk_ns": "memory", "page_us": "memory"}
_PART_OF_UNIT = {"ns": "compute", "us": "python"}
"""Other times: of each element or key, and of calls."""


@dataclass(frozen=True)
class Drift:
    """How much longer a machine takes now than then: ratios by part, and what is left unexplained.

    `spread` is the standard deviation of the logarithm of a step's ratio around what its parts say.
    """

    ratios: Mapping[str, float]
    spread: float

    @property
    def ratio(self) -> float:
        """Of all parts: their geometric mean."""
        return math.exp(math.fsum(map(math.log, self.ratios.values())) / len(self.ratios))

    @property
    def changed(self) -> list[str]:
        """The parts that changed by more than the spread allows."""
        return [
            part for part, ratio in self.ratios.items() if abs(math.log(ratio)) > Z90 * self.spread
        ]

    @property
    def holds(self) -> bool | None:
        """Whether the calibration holds; None where nothing changed, but too little is known."""
        if self.changed:
            return False
        return True if self.spread <= STEADY else None

    @property
    def verdict(self) -> str:
        """`holds` in words."""
        if self.holds is None:
            return "whether the calibration holds is not known: the machine is too unsteady"
        return "the calibration holds" if self.holds else "the calibration does not hold"

    def __str__(self) -> str:
        parts = ", ".join(f"{part} {ratio:.2f}" for part, ratio in self.ratios.items())
        changed = f"changed: {', '.join(self.changed)}" if self.changed else "none changed"
        within = f"spread {100 * math.expm1(self.spread):.0f} %"
        return f"takes {self.ratio:.2f} times as long ({parts}; {changed}; {within})"

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "ratio": self.ratio,
            "parts": dict(self.ratios),
            "changed": self.changed,
            "holds": self.holds,
            "spread_frac": math.expm1(self.spread),
        }


def drift_since(device: Device, now_us: Mapping[str, float], spread: float = 0.0) -> Drift | None:
    """From the reference work's times now; None where the device's file holds none of then."""
    then_us = device.calibration.get(REFERENCE, {})
    if not set(LEVELS) <= set(then_us):
        return None
    return Drift({part: now_us[part] / then_us[f"{part}_us"] for part in PARTS}, spread)


def drifted(device: Device, drift: Drift) -> Device:
    """`device` as it is after `drift`; its intervals are wider by the spread."""
    table = MappingProxyType({**drift.ratios, SPREAD: math.expm1(drift.spread)})
    return replace(device, calibration=MappingProxyType({**device.calibration, DRIFT: table}))


def uncalibrated(device: Device) -> str:
    """What stands for the calibration that a CPU has not."""
    return f"{device.name} was not calibrated: another CPU stands for it"


def remarks(device: Device) -> list[str]:
    """That `device`, a CPU, was not calibrated; else how far it has moved since, or how to find
    out; for predictions."""
    if device.target == "cpu" and not device.calibration:
        return [uncalibrated(device)]
    table = device.calibration.get(DRIFT)
    if table is not None:
        drift = Drift({part: table[part] for part in PARTS}, math.log1p(table[SPREAD]))
        return [f"{drift} as when it was calibrated"]
    if set(LEVELS) <= set(device.calibration.get(REFERENCE, ())):
        return [f"{UNKNOWN}: `python -m perfmodel.collect reference`, then `perfmodel fit drift`"]
    return []


def drifted_values(values: dict[str, float], device: Device) -> dict[str, float]:
    """The parameters `values` of a model as they are after the drift of `device`, if any."""
    ratios = device.calibration.get(DRIFT)
    if ratios is None:
        return values
    after = {}
    for name, value in values.items():
        if name in _PART_OF_RATE:
            value /= ratios[_PART_OF_RATE[name]]
        elif part := _PART_OF_TIME.get(name) or _PART_OF_UNIT.get(name.rpartition("_")[2]):
            value *= ratios[part]
        after[name] = value
    return after


def interval_ratio(device: Device, spread_frac: float) -> float:
    """Bound of a 90 % interval over its middle, where the calibration's own is 1 + `spread_frac`.

    It is wider by what the reference work saw: since the calibration, else during it.
    """
    calibration = device.calibration
    seen = calibration.get(DRIFT) or calibration.get(REFERENCE)
    if seen is None:
        return 1 + spread_frac
    more = Z90 * math.log1p(seen.get(SPREAD, 0.0))
    return math.exp(math.hypot(math.log1p(spread_frac), more))
