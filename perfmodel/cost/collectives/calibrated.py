"""The registered models of collectives: the heuristic, and the shipped fit that corrects it; and a
model corrected by points that were measured on the machine in question.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.arrays import Floats, Ints
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.collectives.calls import COLLECTIVES, Calls
from perfmodel.cost.collectives.heuristic import Heuristic, costs_of, explanations
from perfmodel.cost.collectives.learned import (
    Learned,
    distinct_calls,
    estimate_on_knots,
    take_calls,
    with_factor,
)
from perfmodel.cost.collectives.store import NAME, shipped
from perfmodel.cost.contract import Estimate, Explanation

COLLECTIVES.register("collective/heuristic")(Heuristic("collective/heuristic"))


class Shipped:
    """The shipped model, read when it is first asked."""

    def estimate(self, calls: Calls) -> Estimate:
        """Durations of `calls`."""
        return shipped().estimate(calls)

    def explain(self, calls: Calls) -> list[Explanation]:
        """Why, per call."""
        return shipped().explain(calls)


COLLECTIVES.register(NAME)(Shipped())


_C = coefficients("collectives.calibrated")
CALIBRATED, SWEEP = "calibrated", "sweep"
SWEEP_POINTS = 8
"""From so many points per curve on, the answer rests on a sweep."""


@dataclass(frozen=True, eq=False)
class Calibrated:
    """`base` times a correction: by points of the same curve, straight between them in log(size),
    where those less than an octave apart share their noise; of other curves of the machine, a part
    of the mean. The interval widens with the distance to the nearest point."""

    name: str
    base: Learned
    calls: Calls
    """What was measured."""
    time_us: Floats

    @property
    def level(self) -> str:
        """`calibrated` with a few points per curve, `sweep` with many."""
        curves = len(np.unique(_curves(self.calls, self.calls)[0]))
        return SWEEP if len(self.calls) >= SWEEP_POINTS * curves else CALIBRATED

    def log_us(self, calls: Calls) -> tuple[Floats, Floats]:
        """(log(microseconds), standard deviation), at any sizes; not smoothed."""
        base, spread = self.base.log_us(calls)
        log_ratio = np.log(self.time_us) - self.base.log_us(self.calls)[0]
        measured, asked = _curves(self.calls, calls)
        known, size = np.log2(self.calls.size_bytes), np.log2(calls.size_bytes)
        mean, left = np.zeros(len(calls)), np.ones(len(calls))
        means: dict[bool, list[float]] = {False: [], True: []}
        for curve in np.unique(measured):
            own, there = np.flatnonzero(measured == curve), asked == curve
            own = own[np.argsort(known[own], kind="stable")]
            apart = np.subtract.outer(known[own], known[own]) / _C.noise_octaves
            weight = np.exp(-(apart**2) / 2.0)
            smooth = weight @ log_ratio[own] / weight.sum(axis=1)
            mean[there] = np.interp(size[there], known[own], smooth)
            away = np.abs(np.subtract.outer(size[there], known[own])).min(axis=1)
            left[there] = -np.expm1(-away / _C.reach_octaves)
            means[bool(self.calls.is_remote[own[0]])].append(float(log_ratio[own].mean()))
        for is_remote, of_curves in means.items():
            others = (calls.is_remote == is_remote) & ~np.isin(asked, measured)
            mean[others] = _C.other_curves_frac * float(np.mean(of_curves or [0.0]))
        return base + mean, np.sqrt(_C.noise_sd**2 + spread**2 * left)

    def estimate(self, calls: Calls) -> Estimate:
        """Durations of `calls`; raises `ModelError` for an op without an algorithm."""
        return estimate_on_knots(calls, self.log_us, self.name, self.level)

    def explain(self, calls: Calls) -> list[Explanation]:
        """Why, per call: the heuristic's parts, and the factor that was learned and measured."""
        costs = costs_of(calls, self.base.constants)
        return with_factor(explanations(calls, costs), costs.total_us, self.estimate(calls))


def _curves(measured: Calls, asked: Calls) -> tuple[Ints, Ints]:
    """Which curve each call of both belongs to: the same op and variant, among as many ranks and
    domains."""
    names = ("op", "ranks", "domains", "variant")
    pairs = (np.concatenate([getattr(measured, x), getattr(asked, x)]) for x in names)
    codes = [np.unique(both, return_inverse=True)[1].reshape(-1) for both in pairs]
    kind = np.unique(np.stack(codes), axis=1, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return kind[: len(measured)], kind[len(measured) :]


def calibrated(base: Learned, calls: Calls, time_us: Floats, name: str) -> Calibrated:
    """`base` with points; repeated ones count once, by their median."""
    _, kind = distinct_calls(calls)
    keys = np.stack([kind.astype(np.float64), calls.size_bytes])
    _, index, same = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    same = same.reshape(-1)
    median = np.array([np.median(time_us[same == each]) for each in range(len(index))])
    return Calibrated(name, base, take_calls(calls, index.astype(np.int64)), median)
