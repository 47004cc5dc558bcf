"""How far a step that was not seen lies from its prediction: by the errors of those that were.

An error is the logarithm of a step over what the other steps predict of it. Few of them say little
of how far the next one will be off, so what steps of other traces scatter stands beside them as if
it were some more errors; their number decides the quantile of Student's t distribution.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, pi, sqrt, tan

import numpy as np

from perfmodel.trace.columns import Floats

COVERED_FRAC = 0.9
_ANGLES = 4096


@dataclass(frozen=True)
class Prior:
    """What is known of a trace's errors before any is."""

    spread: float
    """Their root mean square."""
    errors: float
    """How many of the trace's own errors it counts for."""
    widening: float
    """By how much the bounds that follow are too close: errors that leave one step out share all
    other steps."""

    def bound(self, seen: Floats) -> float:
        """The bound that a further error stays below in 90 % of cases, where `seen` are known; of
        them, those that are no number say nothing."""
        seen = seen[np.isfinite(seen)]
        known = self.errors + len(seen)
        mean_square = (self.errors * self.spread**2 + float(np.sum(seen**2))) / known
        freedom = self.errors + max(len(seen) - 1, 0)
        return self.widening * student_quantile(freedom) * sqrt(mean_square)


def student_quantile(freedom: float, covered_frac: float = COVERED_FRAC) -> float:
    """The bound that Student's t of so many degrees of freedom stays within.

    Its distribution is that of the square root of `freedom` times the tangent of an angle whose
    density is a power of its cosine.
    """
    angle = np.linspace(0, pi / 2, _ANGLES + 1)
    density = np.cos((angle[1:] + angle[:-1]) / 2) ** (freedom - 1)
    below = np.concatenate([[0.0], np.cumsum(density)]) / density.sum()
    return sqrt(freedom) * tan(float(np.interp(covered_frac, below, angle)))


PRIOR = Prior(spread=0.0394, errors=1.73, widening=1.144)
"""fitted_on: 17 traces of 2 to 8 steps, six of them of this project (CPU), 11 public ones (V100,
A100, MI300X). Source: `benchmarks/step_intervals.py`, which fits spread and errors by
likelihood, every trace with equal weight, then takes the widening that covers 90 %, and says how
many steps of each trace the constants of the other traces cover."""


def median_errors(step_us: Floats) -> Floats:
    """The error of each step (two at least) where the median of the others predicts it."""
    others = [np.median(np.delete(step_us, at)) for at in range(len(step_us))]
    return errors(step_us, np.array(others))


def errors(step_us: Floats, predicted_us: Floats) -> Floats:
    """The errors of predictions that have not seen the step; nan where either takes no time."""
    found = np.full(len(step_us), np.nan)
    timed = (step_us > 0) & (predicted_us > 0)
    found[timed] = np.log(step_us[timed] / predicted_us[timed])
    return found


def interval(predicted_us: float, seen: Floats, prior: Prior = PRIOR) -> tuple[float, float]:
    """90 % interval around a prediction whose errors on other steps are `seen`."""
    factor = exp(prior.bound(seen))
    return predicted_us / factor, predicted_us * factor
