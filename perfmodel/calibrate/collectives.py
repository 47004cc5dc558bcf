"""The collective model from published curves: constants, trees on what they leave.

Errors and intervals come from repositories that were left out.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import fields, replace
from datetime import date
from importlib.resources import files
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.model_selection import LeaveOneGroupOut
from sklearn.utils.validation import check_is_fitted
from xgboost import XGBRegressor

from perfmodel.arrays import Floats
from perfmodel.calibrate.collective_data import MAX_ALIKE, SCORED_BYTES, Measured, read_measured
from perfmodel.cost.collectives.calls import Calls, Texts
from perfmodel.cost.collectives.heuristic import Constants, costs_of
from perfmodel.cost.collectives.learned import (
    KERNELS,
    LATENCY_FRACS,
    NAME,
    ONE_NODE,
    SEVERAL,
    Z90,
    Learned,
    features_of,
    latency_frac,
    take_calls,
)
from perfmodel.cost.trees import of_dumps
from perfmodel.errors import ModelError
from perfmodel.hardware.generations import GENERATIONS, nearest_known
from perfmodel.progress import Begin, begun, silent

PRIOR_WEIGHT = 0.5
"""What a constant costs that is e times its start, in units of the residuals."""
_SCALE = 0.15
"""Errors of log time up to this count by their square, larger ones by their size."""
_REWEIGHTINGS = 15
_REACH = 5.0
"""A constant stays within this factor of its start; shares of a rate stay below 1."""
_STEP = 1e-3
FACTORS = ("base_factor", "hop_factor")
"""What a generation that was not measured takes from the others of its maker."""


def initial_constants() -> Constants:
    """Where the fit starts, and what constants stay near that the data say little of."""
    text = files("perfmodel.cost.collectives").joinpath("prior.toml").read_text(encoding="utf-8")
    values = {
        f"{table}.{name}": float(value)
        for table, entries in tomllib.loads(text).items()
        if isinstance(entries, dict)
        for name, value in entries.items()
    }
    return Constants(values, "prior.toml")


def fit_constants(calls: Calls, log_us: Floats, weight: Floats) -> Constants:
    """Constants that fit `log_us` `[n]` best; those of frameworks' kernels behind the library's."""
    prior = initial_constants()
    constants = prior
    for is_custom in (False, True):
        names = [name for name in prior.values if name.startswith(OF_KERNELS) == is_custom]
        index = np.flatnonzero(calls.is_custom == is_custom).astype(np.int64)
        if len(index):
            part = take_calls(calls, index)
            constants = _fitted(constants, names, part, log_us[index], weight[index])
    return fill_unseen_architectures(constants, calls.architecture)


OF_KERNELS = "custom."


def _fitted(
    start: Constants, names: list[str], calls: Calls, log_us: Floats, weight: Floats
) -> Constants:
    """`start` with the constants `names` that fit best, in the sense of a soft absolute error."""
    from scipy.optimize import least_squares

    origin = np.log([start.values[name] for name in names])
    root = np.sqrt(weight / weight.mean())

    def constants(logs: Floats) -> Constants:
        solution = dict(zip(names, np.exp(logs).tolist(), strict=True))
        return Constants({**start.values, **solution}, "fitted")

    def residuals(logs: Floats) -> Floats:
        error = np.log(costs_of(calls, constants(logs)).total_us) - log_us
        soft = np.sign(error) * _SCALE * np.sqrt(2 * (np.sqrt(1 + (error / _SCALE) ** 2) - 1))
        return np.concatenate([root * soft, (logs - origin) * PRIOR_WEIGHT])

    reach = np.log(_REACH)
    is_share = np.array([name.endswith("_frac") or ".ll" in name for name in names])
    most = np.where(is_share & (origin < 0), np.minimum(origin + reach, 0.0), origin + reach)
    solution = least_squares(
        residuals, origin, bounds=(origin - reach, most), max_nfev=_REWEIGHTINGS, diff_step=_STEP
    )
    return constants(solution.x)


def fill_unseen_architectures(constants: Constants, architectures: Texts) -> Constants:
    """Generations that are not among the measured `architectures` with the mean of those that are.

    Means are geometric, over generations of the same maker.
    """
    values = dict(constants.values)
    words = {key.partition(".")[0] for key in values if key.endswith(FACTORS)}
    seen = {nearest_known(each, words) for each in set(architectures.tolist())}
    for maker in {GENERATIONS[word].maker for word in words}:
        words_of_maker = sorted(word for word in words if GENERATIONS[word].maker == maker)
        known = [word for word in words_of_maker if word in seen]
        for name in FACTORS if known else ():
            mean = float(np.exp(np.mean([np.log(values[f"{word}.{name}"]) for word in known])))
            values |= {f"{word}.{name}": mean for word in words_of_maker if word not in known}
    return Constants(values, constants.source)


MOST = 0.7
MIN_REPOSITORIES = 2
_TREES = XGBRegressor(
    n_estimators=150,
    max_depth=4,
    learning_rate=0.06,
    min_child_weight=3,
    subsample=0.7,
    colsample_bytree=0.6,
    reg_lambda=5,
    objective="reg:pseudohubererror",
    huber_slope=0.3,
    base_score=0.0,
    random_state=0,
    n_jobs=1,
)


def fit_collectives(pairs: Sequence[tuple[str, str]], begin: Begin = silent) -> Learned:
    """The model from tables of curves and of points; `ModelError` for what cannot be used."""
    measured, left_out = read_measured(pairs)
    _require_several(measured, pairs[0][0])
    begin("all repositories", 0, 0)
    X, y = _table(measured.calls), np.log(measured.time_us)
    weight = np.where(measured.alike < MAX_ALIKE, measured.weight, 0.0)
    model = CollectiveRegressor().fit(X, y, weight).model_
    groups = np.where(measured.calls.is_custom, measured.calls.architecture, measured.repo)
    folds, log_us = list(LeaveOneGroupOut().split(X, y, groups)), np.empty(len(X))
    for taught, left in begun(folds, begin, lambda fold: f"without {groups[fold[1][0]]}"):
        fitted = CollectiveRegressor().fit(X.iloc[taught], y[taught], weight[taught])
        log_us[left] = fitted.predict(X.iloc[left])
    spreads: dict[str, tuple[float, ...]] = {}
    library, is_remote = ~measured.calls.is_custom, measured.calls.is_remote
    kinds = {ONE_NODE: library & ~is_remote, SEVERAL: library & is_remote, KERNELS: ~library}
    for kind, chosen in kinds.items():
        if not chosen.any():
            spreads[kind] = spreads[ONE_NODE]
            continue
        part, ratio = measured.where(chosen), (y - log_us)[chosen]
        scored = part.calls.size_bytes >= SCORED_BYTES
        waiting = latency_frac(costs_of(part.calls, model.constants))
        spreads[kind] = _spread(ratio[scored], waiting[scored], part.weight[scored])
    about = _about(measured, left_out)
    return replace(model, spreads=spreads, about=about)


def _require_several(measured: Measured, where: str) -> None:
    """Raise `ModelError` where there is nothing to leave out."""
    scored = measured.calls.size_bytes >= SCORED_BYTES
    for words, is_remote in (("within a node", False), ("over several nodes", True)):
        here = scored & (measured.calls.is_remote == is_remote)
        count = len(np.unique(measured.repo[here]))
        if count < MIN_REPOSITORIES:
            raise ModelError(
                f"{where}: usable curves {words} of {count} repositories; errors are "
                f"those of repositories left out: expected at least {MIN_REPOSITORIES}"
            )


class CollectiveRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Logarithm of a collective's microseconds: constants by least squares, then trees on the rest.

    `X` is a frame with the columns of `Calls`. Rows of weight 0 are left out of the fit.
    """

    def __init__(self, trees: Any = _TREES) -> None:
        self.trees = trees

    def fit(self, X: pd.DataFrame, y: Floats, sample_weight: Floats) -> CollectiveRegressor:
        """Intervals of `model_` are placeholders until repositories were left out."""
        weighted = np.flatnonzero(sample_weight)
        calls, y = _calls(X.iloc[weighted]), np.asarray(y)[weighted]
        weight = sample_weight[weighted]
        constants = fit_constants(calls, y, weight)
        costs = costs_of(calls, constants)
        features = pd.DataFrame(features_of(calls, costs))
        target = y - np.log(costs.total_us)
        own = ~calls.is_custom
        trees = clone(self.trees).fit(features[own], target[own], sample_weight=weight[own])
        dumps = trees.get_booster().get_dump(dump_format="json")
        columns = tuple(features)
        self.model_ = Learned(
            name=NAME,
            constants=constants,
            columns=columns,
            trees=of_dumps(dumps, 0.0, columns),
            most=MOST,
            spreads=dict.fromkeys((ONE_NODE, SEVERAL, KERNELS), (0.2,) * len(LATENCY_FRACS)),
            fitted={
                kind: tuple(np.unique(calls.op[own & (calls.is_remote == is_remote)]).tolist())
                for kind, is_remote in ((ONE_NODE, False), (SEVERAL, True))
            },
        )
        return self

    def predict(self, X: pd.DataFrame) -> Floats:
        """As the stored model will, before it is smoothed over sizes."""
        check_is_fitted(self)
        return self.model_.log_us(_calls(X))[0]


def _table(calls: Calls) -> pd.DataFrame:
    return pd.DataFrame({each.name: getattr(calls, each.name) for each in fields(calls)})


def _calls(table: pd.DataFrame) -> Calls:
    texts = table.select_dtypes(exclude=["number", "bool"])
    columns = {name: table[name].to_numpy() for name in table}
    return Calls(**columns | {name: table[name].to_numpy(np.str_) for name in texts})


def _spread(ratio: Floats, waiting: Floats, weight: Floats) -> tuple[float, ...]:
    """Standard deviations that give a 90 % interval as wide as the errors' own, by the share of
    time that is latency."""
    from sklearn.linear_model import QuantileRegressor

    near = np.stack([np.interp(waiting, LATENCY_FRACS, row) for row in np.eye(len(LATENCY_FRACS))])
    line = QuantileRegressor(quantile=0.9, alpha=0.0, fit_intercept=False, solver="highs")
    line.fit(near.T, np.abs(ratio), sample_weight=weight)
    return tuple(round(max(float(end) / Z90, MIN_SD), 4) for end in line.coef_)


MIN_SD = 0.02


def _about(measured: Measured, left_out: dict[str, str]) -> dict[str, Any]:
    by_repo = pd.Series(measured.curve).groupby(measured.repo).agg(rows="size", curves="nunique")
    return {
        "source": "fitted to public measurements (nccl-tests, rccl-tests and their like)",
        "repositories": by_repo.to_dict("index"),
        "rows": len(measured),
        "curves_left_out": len(left_out),
        "date": date.today().isoformat(),
        "intervals": "from repositories that were left out",
    }
