"""The heuristic's constants from measured curves: robust least squares of log time."""

from __future__ import annotations

from importlib.resources import files

import numpy as np
import tomllib

from perfmodel.network.calls import Calls, Texts
from perfmodel.network.constants import Constants
from perfmodel.network.heuristic import costs_of
from perfmodel.ops.spec import Floats

PRIOR_WEIGHT = 0.5
"""What a constant costs that is e times its start, in units of the residuals."""
_SCALE = 0.15
"""Errors of log time up to this count by their square, larger ones by their size."""
_ROUNDS = 15
_REACH = 5.0
"""A constant stays within this factor of its start; shares of a rate stay below 1."""
_STEP = 1e-3
MAKERS = (("ampere", "hopper", "blackwell"), ("cdna",))
FACTORS = ("base_factor", "hop_factor")
"""What a generation that was not measured takes from the others of its maker."""


def start() -> Constants:
    """Where the fit starts, and what constants stay near that the data say little of."""
    text = files("perfmodel.network").joinpath("prior.toml").read_text(encoding="utf-8")
    values = {
        f"{table}.{name}": float(value)
        for table, entries in tomllib.loads(text).items()
        if isinstance(entries, dict)
        for name, value in entries.items()
    }
    return Constants(values, "prior.toml")


def fit_constants(calls: Calls, log_us: Floats, weight: Floats) -> Constants:
    """Constants that fit `log_us` `[n]` best, in the sense of a soft absolute error."""
    from scipy.optimize import least_squares

    prior = start()
    names = list(prior.values)
    origin = np.log([prior.values[name] for name in names])
    root = np.sqrt(weight / weight.mean())

    def constants(logs: Floats) -> Constants:
        return Constants(dict(zip(names, np.exp(logs).tolist(), strict=True)), "fitted")

    def residuals(logs: Floats) -> Floats:
        error = np.log(costs_of(calls, constants(logs)).total_us) - log_us
        soft = np.sign(error) * _SCALE * np.sqrt(2 * (np.sqrt(1 + (error / _SCALE) ** 2) - 1))
        return np.concatenate([root * soft, (logs - origin) * PRIOR_WEIGHT])

    reach = np.log(_REACH)
    is_share = np.array([name.endswith("_frac") or ".ll" in name for name in names])
    most = np.where(is_share & (origin < 0), np.minimum(origin + reach, 0.0), origin + reach)
    found = least_squares(
        residuals, origin, bounds=(origin - reach, most), max_nfev=_ROUNDS, diff_step=_STEP
    )
    return unseen_like_others(constants(found.x), calls.architecture)


def unseen_like_others(constants: Constants, architectures: Texts) -> Constants:
    """Generations that are not among the measured `architectures` with the mean of those that are.

    Means are geometric, over generations of the same maker.
    """
    seen = set(architectures.tolist())
    values = dict(constants.values)
    for maker in MAKERS:
        known = [word for word in maker if any(each.startswith(word) for each in seen)]
        for name in FACTORS if known else ():
            mean = float(np.exp(np.mean([np.log(values[f"{word}.{name}"]) for word in known])))
            values |= {f"{word}.{name}": mean for word in maker if word not in known}
    return Constants(values, constants.source)
