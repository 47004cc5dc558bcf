"""A kernel model that is a family's physics alone, and what measured times contain beside it.

A time is the longer of a floor, for which the host alone is the reason, and the kernel behind a
fixed offset: `max(floor, offset + kernel)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.contract import Estimate, Explanation
from perfmodel.cost.gpu.analysis import Analyse, Analysis
from perfmodel.errors import ModelError
from perfmodel.hardware import Device
from perfmodel.ops.rows import Kind, Rows


class Floor(NamedTuple):
    """Microseconds: the shortest time such a measurement shows, and what adds to a long kernel."""

    floor_us: float
    offset_us: float


_C = coefficients("gpu.heuristic")
SHORTEST_ENDS = np.array([[_C.table("shortest_ends")[end]] for end in ("low", "high")])
"""Of the device's shortest kernel, the ends of a 90 % interval `[2, 1]`."""
OF_UNKNOWN_HOST = 2.0
"""Factor around a floor that fewer hosts were measured for than show a spread (assumed)."""
TIMINGS = {name: Floor(floor, offset) for name, (floor, offset) in _C.tuples("timings").items()}


def calls_of(op: str) -> float:
    """Launches of a usual call of `op`, as its floor shows them."""
    return _C.table("calls").get(op, 1.0)


def floors_of(rows: Rows) -> Floats:
    """(floor_us, offset_us) `[2, n]`; raises `ModelError` for an unknown `timing`."""

    def of(kind: Kind) -> tuple[float, float]:
        if kind.timing not in TIMINGS:
            known = ", ".join(sorted(TIMINGS))
            raise ModelError(f"unknown timing {kind.timing!r}; one of {known}")
        floor_us, offset_us = _C.tuples("timings")[kind.timing]
        return floor_us * calls_of(kind.op), offset_us

    return rows.of_kinds(of).reshape(len(rows), 2).T


def measured_us(kernel_us: Floats, floor_us: Floats, offset_us: Floats) -> Floats:
    """The time that a measurement shows: a maximum with a slightly rounded corner."""
    long = offset_us + kernel_us
    larger = np.maximum(long, floor_us)
    smaller = np.minimum(long, floor_us)
    return larger * (1.0 + (smaller / larger) ** _C.sharpness) ** (1.0 / _C.sharpness)


DATASHEET = "datasheet figures"
AS_TIMED = "as timed: max(launch_floor_us, offset_us + kernel)"
"""What of a kernel a measurement shows."""


@dataclass(frozen=True)
class Heuristic:
    """Durations from `analyse` with a fixed relative 90 % interval, never below the bound."""

    family: str
    analyse: Analyse

    @property
    def name(self) -> str:
        """As it is registered."""
        return f"gpu/{self.family}/heuristic"

    @property
    def spread(self) -> float:
        """The factor to either side that holds 90 % of times."""
        return _C.spread

    def estimate(self, rows: Rows, device: Device) -> Estimate:
        """Durations of `rows`; raises `ModelError` on impossible rows."""
        analysis = self.analyse(rows, device)
        kernel_us = at_least(analysis.kernel_us, analysis, device)
        around_us = analysis.kernel_us * np.array([[1.0 / self.spread], [self.spread]])
        ends_us = at_least(around_us, analysis, device, SHORTEST_ENDS)
        shown = shown_us(kernel_us, ends_us, floors_of(rows))
        return Estimate(*shown, self.name, DATASHEET, by_physics=np.ones(len(rows), bool))

    def explain(self, rows: Rows, device: Device) -> list[Explanation]:
        """Why, per row."""
        physics = (self.analyse.__doc__ or self.name).strip()
        formula = f"{physics} kernel = max(that, bound_us, device.kernel_floor_us); {AS_TIMED}"
        duration_us = self.estimate(rows, device).duration_us
        return explanations(rows, device, self.analyse(rows, device), duration_us, formula)


def shown_us(kernel_us: Floats, ends_us: Floats, floors: Floats) -> tuple[Floats, Floats, Floats]:
    """What a measurement shows of kernels, and its interval: of the `ends_us` of the kernel
    `[2, n]`, and of least and most floors of unknown hosts, which are independent of it: their
    logarithms add in squares. `floors` are floors and offsets `[2, n]`."""
    factor = np.where(floors[0] > 0.0, OF_UNKNOWN_HOST, 1.0)
    hosts = np.array([np.ones_like(factor)] * 3 + [1.0 / factor, factor])
    kernels_us = np.array([kernel_us, *ends_us, kernel_us, kernel_us])
    usual_us, *ends = measured_us(kernels_us, floors[0] * hosts, floors[1] * hosts)
    of_kernel, of_host = np.log(np.array(ends).reshape(2, 2, -1) / usual_us)
    off = np.copysign(np.hypot(of_kernel, of_host), of_kernel + of_host)
    low_us, high_us = usual_us * np.exp(off)
    return usual_us, np.minimum(low_us, usual_us), np.maximum(high_us, usual_us)


def at_least(
    kernel_us: Floats, analysis: Analysis, device: Device, shortest: Floats | float = 1.0
) -> Floats:
    """`kernel_us`, at least the physical bound and `shortest` of the device's shortest kernel."""
    least_us = np.maximum(analysis.bound_us, shortest * device.kernel_floor_us)
    return np.maximum(kernel_us, least_us)


def explanations(
    rows: Rows, device: Device, analysis: Analysis, duration_us: Floats, formula: str
) -> list[Explanation]:
    """One explanation per row from its analysis and its duration."""
    floor_us, offset_us = floors_of(rows)
    longest = np.argmax(np.stack(list(analysis.shares.values())), axis=0)
    bound_by = np.array(list(analysis.shares))[longest]
    bound_by = np.where(analysis.kernel_us <= device.kernel_floor_us, "latency", bound_by)
    bound_by = np.where(floor_us >= offset_us + analysis.kernel_us, "launch", bound_by)
    used_frac = np.minimum(1.0, analysis.bound_us / duration_us)
    columns = {f"{name}_us": each for name, each in analysis.shares.items()}
    columns |= {"bound_us": analysis.bound_us, **analysis.features}
    columns |= {"launch_floor_us": floor_us, "offset_us": offset_us}
    return [
        Explanation(
            duration_us=float(duration_us[row]),
            bound_by=str(bound_by[row]),
            flop=float(analysis.flop[row]),
            read_bytes=float(analysis.read_bytes[row]),
            written_bytes=float(analysis.written_bytes[row]),
            utilisation_frac=float(used_frac[row]),
            terms={name: float(each[row]) for name, each in columns.items()},
            formula=formula,
        )
        for row in range(len(rows))
    ]
