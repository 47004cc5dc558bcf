"""The heuristic times what trees learned of its error: between sizes straight, never falling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from perfmodel.kernels.learned.forest import Forest
from perfmodel.kernels.model import Estimate, Explanation
from perfmodel.network.calibration import Covariance
from perfmodel.network.calls import Calls
from perfmodel.network.constants import Constants
from perfmodel.network.features import features_of
from perfmodel.network.heuristic import SPECS, costs_of, explanations
from perfmodel.network.knots import Answer, on_knots, on_rates
from perfmodel.ops.spec import Floats

Z90 = 1.645
"""Standard deviations to either end of a 90 % interval."""
ONE_NODE, SEVERAL = "one_domain", "several_domains"


@dataclass(frozen=True)
class Learned:
    """Fitted to published curves; `spreads` are errors on repositories that were left out."""

    name: str
    constants: Constants
    columns: tuple[str, ...]
    trees: Forest
    most: float
    """The largest correction, as a logarithm."""
    spreads: Mapping[str, float]
    """Standard deviation of log(measured / predicted), by `one_domain` and `several_domains`."""
    covariances: Mapping[str, Covariance]
    """Of what measured points correct, likewise."""
    about: Mapping[str, Any] = field(default_factory=dict)

    def log_us(self, calls: Calls) -> tuple[Floats, Floats]:
        """(log(microseconds), standard deviation), at any sizes; not smoothed."""
        costs = costs_of(calls, self.constants)
        found = features_of(calls, costs)
        matrix = np.stack([found[name] for name in self.columns], axis=1)
        factor = np.clip(self.trees.predict(matrix), -self.most, self.most)
        spread = np.where(calls.is_remote, self.spreads[SEVERAL], self.spreads[ONE_NODE])
        return np.log(costs.total_us) + factor, spread

    def estimate(self, calls: Calls) -> Estimate:
        """Durations of `calls`, no longer on faster links; raises `ModelError` for an op without an
        algorithm."""
        return estimate_on_knots(calls, lambda each: on_rates(each, self.log_us), self.name, SPECS)

    def explain(self, calls: Calls) -> list[Explanation]:
        """Why, per call: the heuristic's parts, and the factor that was learned."""
        costs = costs_of(calls, self.constants)
        return with_factor(explanations(calls, costs), costs.total_us, self.estimate(calls))


def estimate_on_knots(calls: Calls, answer: Answer, name: str, source: str) -> Estimate:
    """Durations with their 90 % interval from `answer`, continuous and monotone in size."""
    log_us, spread = on_knots(calls, answer)
    reach = Z90 * spread
    return Estimate(np.exp(log_us), np.exp(log_us - reach), np.exp(log_us + reach), name, source)


def with_factor(
    explained: list[Explanation], heuristic_us: Floats, found: Estimate
) -> list[Explanation]:
    """`explained` with the durations of `found`, and their ratio to the heuristic's."""
    from dataclasses import replace

    return [
        replace(
            each,
            duration_us=float(us),
            terms={**each.terms, "learned_factor": float(us / heuristic)},
            formula=f"({each.formula}) x learned_factor",
        )
        for each, us, heuristic in zip(explained, found.duration_us, heuristic_us, strict=True)
    ]
