"""The scikit-learn estimators of fits: boosted trees, a user's regressor, mixtures of two models.

Scikit-learn and XGBoost take seconds to import: only modules that fit import this one, and late.
"""

from __future__ import annotations

import importlib
import os
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from sklearn import config_context
from sklearn.base import BaseEstimator, MetaEstimatorMixin, RegressorMixin, clone, is_regressor
from sklearn.metrics import make_scorer
from sklearn.model_selection import GridSearchCV, LeaveOneGroupOut, cross_val_predict
from sklearn.utils.validation import (
    _check_sample_weight,
    check_is_fitted,
    has_fit_parameter,
    validate_data,
)
from xgboost import XGBRegressor

from perfmodel.arrays import Floats
from perfmodel.cost.learned.features import FALLING
from perfmodel.errors import UsageError

KNOWN_TREES = {"max_depth": 9, "learning_rate": 0.1, "min_child_weight": 10, "n_estimators": 250}
_FOREST = KNOWN_TREES | {"max_depth": 10, "n_estimators": 100, "num_parallel_tree": 4}
KNOWN_TREES_OF_PART = {"matmul_fp32": _FOREST, "vector_rows": _FOREST}
"""Several trees per round where single ones answer by chance: at the edge of the domain."""
GENERAL_TREES = {"max_depth": 5, "learning_rate": 0.08, "min_child_weight": 20, "n_estimators": 150}
_MOST_ERROR = 2.0
"""Errors of a log factor count up to here when a share is chosen."""
Make = Callable[..., Any]
"""From the shape of trees and the names of columns to an estimator that was not fitted yet."""


def boosted(
    shape: Mapping[str, float],
    names: Sequence[str],
    *,
    seed: int,
    falling: frozenset[str] = frozenset(),
) -> XGBRegressor:
    """Boosted trees of `shape` over the columns `names`; the same for the same data and seed.

    The answer never rises with a column of `falling`.
    """
    return XGBRegressor(
        **shape,
        tree_method="hist",
        subsample=0.7,
        colsample_bytree=0.7,
        reg_lambda=3.0,
        monotone_constraints=tuple(-int(name in falling) for name in names),
        random_state=seed,
        n_jobs=1,
        verbosity=0,
    )


class Bounded(MetaEstimatorMixin, RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Any regressor, kept within the targets that it was fitted to.

    Rows of weight 0 are left out; other weights reach a `regressor` whose `fit` takes them.
    """

    def __init__(self, regressor: Any) -> None:
        self.regressor = regressor

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Bounded:
        """Fit a clone of `regressor` to the rows whose weight is above 0."""
        X, y = validate_data(self, X, y, y_numeric=True)
        weight = _check_sample_weight(sample_weight, X, ensure_non_negative=True)
        told = weight > 0.0
        if not told.any():
            raise ValueError("all weights are zero")
        takes_weights = sample_weight is not None and has_fit_parameter(
            self.regressor, "sample_weight"
        )
        weights = {"sample_weight": weight[told]} if takes_weights else {}
        self.regressor_ = clone(self.regressor).fit(X[told], y[told], **weights)
        self.low_, self.high_ = float(y[told].min()), float(y[told].max())
        return self

    def predict(self, X: Any) -> Any:
        """The regressor's answers, between the least and the largest target."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False)
        return np.clip(self.regressor_.predict(X), self.low_, self.high_)


def users_regressor(name: str, seed: int) -> Bounded:
    """The regressor that `MODULE:CLASS` names, made without arguments; its random states `seed`.

    A function that returns a regressor (a pipeline) will do as well. The working directory is
    searched, too. Raises `UsageError`.
    """
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise UsageError(f"--estimator {name}: expected MODULE:CLASS")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        regressor = getattr(importlib.import_module(module), attribute)()
        if not (hasattr(regressor, "get_params") and is_regressor(regressor)):
            raise TypeError("is not a scikit-learn regressor (RegressorMixin, fit and predict)")
        states = [each for each in regressor.get_params() if each.endswith("random_state")]
        regressor = clone(regressor).set_params(**dict.fromkeys(states, seed))
        pickle.dumps(regressor)
    except Exception as error:  # the user's code may raise anything
        what = " ".join(str(error).split()) or type(error).__name__
        raise UsageError(f"--estimator {name}: {what[:200]}") from None
    return Bounded(regressor)


def trees_or(given: Bounded | None, build: str, seed: int) -> Make:
    """What the regressors of a part are made by: boosted trees, or clones of the `given` one."""
    if given is None:
        falling = frozenset(FALLING.get(build, ()))
        return partial(boosted, seed=seed, falling=falling)
    return lambda shape, names, **_: clone(given)


def without_group(
    estimator: Any, matrix: Any, target: Floats, weight: Floats, groups: Any
) -> Floats:
    """What is predicted `[n]` for each of `groups` by the `estimator` fitted to the others."""
    found = cross_val_predict(
        estimator,
        matrix,
        target,
        groups=groups,
        cv=LeaveOneGroupOut(),
        params={"sample_weight": weight},
    )
    return np.asarray(found, np.float64)


class Mixture(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """What two models say together: `share` of the last column, the rest of the first."""

    def __init__(self, share: float = 0.0) -> None:
        self.share = share

    def fit(self, X: Any, y: Any) -> Mixture:
        """Nothing is learned; the share is chosen by `best_share`."""
        validate_data(self, X, y, y_numeric=True)
        return self

    def predict(self, X: Any) -> Any:
        """The weighted mean of both columns."""
        check_is_fitted(self, "n_features_in_")
        X = validate_data(self, X, reset=False)
        return (1.0 - self.share) * X[:, 0] + self.share * X[:, -1]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # of columns that are no predictions
        return tags


def best_share(
    shares: Sequence[float], one: Floats, other: Floats, y: Floats, weight: Floats, groups: Any
) -> float:
    """How much of `other` beside `one` predicts whole `groups` best, each counted once.

    All arrays `[n]`; ties go to the smaller share.
    """
    everything = np.arange(len(y))  # a mixture learns nothing, so nothing is kept from it
    by_group = [(everything, np.flatnonzero(groups == each)) for each in np.unique(groups)]
    with config_context(enable_metadata_routing=True):
        error = make_scorer(_capped_error, greater_is_better=False)
        search = GridSearchCV(
            Mixture(),
            {"share": list(shares)},
            scoring=error.set_score_request(sample_weight=True),
            cv=by_group,
            refit=_best_of_groups,
        )
        search.fit(np.column_stack([one, other]), y, sample_weight=weight)
    return float(search.best_params_["share"])


def _capped_error(y: Any, predicted: Any, sample_weight: Any = None) -> float:
    off = np.minimum(np.abs(y - predicted), _MOST_ERROR)
    return float(np.average(off, weights=sample_weight))


def _best_of_groups(results: Mapping[str, Any]) -> int:
    """The place of the least sum of median and mean error over groups."""
    scores = [results[name] for name in results if name.startswith("split")]
    errors = -np.array(scores)
    return int(np.argmin(np.median(errors, axis=0) + errors.mean(axis=0)))
