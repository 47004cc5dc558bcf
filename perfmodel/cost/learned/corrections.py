"""What keeps the trees' answers safe between and beyond measured rows and devices: slopes, growth,
and on which side of a chip a correction lies.

Trees answer with a constant there, although what a kernel takes beside its work, whatever that
is, becomes an ever smaller share of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from perfmodel.arrays import Floats, median
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.learned.devices import Description, nearest


@dataclass(frozen=True)
class Gains:
    """Per op, what one more of `figure` adds to the log of the time on each device known."""

    figure: str
    slopes: Mapping[str, Mapping[int, float]]
    """By op, then by the device's place among the part's devices."""

    def on(self, near: tuple[int, ...]) -> dict[str, float]:
        """By op, the slope of the devices `near`, else the median of those known."""
        own = {
            op: [known[place] for place in near if place in known] or list(known.values())
            for op, known in self.slopes.items()
        }
        return {op: median(np.array(slopes)) for op, slopes in own.items() if slopes}


NONE = Gains("", {})


def places_of(device: Description, known: Sequence[Description]) -> tuple[int, ...]:
    """Where `device` stands among `known`; nowhere for one that is not."""
    return tuple(place for place, each in enumerate(known) if each == device)


_C = coefficients("gpu.reductions")
_STEPS = 5
_TOLERANCE_FRAC = 0.02


@dataclass(frozen=True)
class Growth:
    """Of one op on one device: the most work measured, and the time that more of it takes."""

    device: Description
    most_work: float
    per_base: float
    """Microseconds per microsecond of the base, among the larger half of the rows."""


def line_of(work: Floats, kernel_us: Floats) -> tuple[float, float]:
    """(intercept, slope) of `kernel_us` over `work` `[n]`, by relative least absolute errors.

    Neither is negative.
    """
    from scipy.optimize import nnls

    matrix = np.stack([1.0 / kernel_us, work / kernel_us], axis=1)
    weight = np.ones(len(work))
    solution = np.zeros(2)
    for _ in range(_STEPS):
        solution, _ = nnls(matrix * weight[:, None], weight)
        off = np.abs(matrix @ solution - 1.0)
        weight = 1.0 / np.sqrt(np.maximum(off, _TOLERANCE_FRAC))
    return float(solution[0]), float(solution[1])


@dataclass(frozen=True)
class Extension:
    """How one op goes on beyond its measurements, by device."""

    trust: float
    """How much of the growth holds, 0 to 1: as much as the largest rows showed, when left out."""
    known: tuple[Growth, ...]

    def on(self, device: Description) -> Growth:
        """That of the device which is most similar."""
        own = nearest(device, [each.device for each in self.known])[0]
        return next(each for each in self.known if each.device == own)


def _balance(device: Description) -> float:
    """Logarithm of the bytes that its memory moves while its multiprocessors do one operation."""
    return device["bytes_per_clock"] - device["flop_per_clock"]


def carried_log_factors(
    factors: Floats, on_chip_frac: Floats, near: Description, own: Description
) -> Floats:
    """Log factors `[n]` of a device like `near`, as one like `own` has them, whose memory may be
    slower for its multiprocessors.

    What kernels take beside their base is then the multiprocessors' time, which is shorter by their
    arithmetic: the slower memory lengthens the base alone, but for `on_chip_frac` of it, and hides
    the rest in part. What a faster memory shows of it was hidden on `near`: nothing is changed.
    """
    slower = np.exp(_balance(near) - _balance(own))
    ratio = on_chip_frac + (1.0 - on_chip_frac) / max(slower, 1.0)
    power = _C.together_exponent
    longer = np.log1p(ratio**power * np.expm1(power * np.maximum(factors, 0.0))) / power
    return np.asarray(longer + np.log1p(ratio * np.expm1(np.minimum(factors, 0.0))))


def extrapolated_log_factors(factors: Floats, work: Floats, growth: Growth, trust: float) -> Floats:
    """Log factors of rows of `work`, carried on by `growth` as far as it is trusted."""
    share = np.minimum(1.0, growth.most_work / np.maximum(work, 1.0))
    grown = np.log(growth.per_base + (np.exp(factors) - growth.per_base) * share)
    return np.asarray(factors + trust * (grown - factors))
