"""The scikit-learn estimators of fits: boosted trees, a user's regressor.

Scikit-learn and XGBoost take seconds to import: only modules that fit import this one, and late.
"""

from __future__ import annotations

import importlib
import os
import pickle
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, MetaEstimatorMixin, RegressorMixin, clone, is_regressor
from sklearn.utils.validation import (
    _check_sample_weight,
    check_is_fitted,
    has_fit_parameter,
    validate_data,
)
from xgboost import XGBRegressor

from perfmodel.errors import UsageError

TREES = {"max_depth": 8, "learning_rate": 0.1, "min_child_weight": 5, "n_estimators": 250}
LEFT_OUT_TREES = TREES | {"n_estimators": 100}
OWN_TREES = {"max_depth": 7, "learning_rate": 0.12, "min_child_weight": 5, "n_estimators": 100}
"""Of one device: fewer and shallower, which keeps files small."""


def boosted(
    shape: Mapping[str, float], names: Sequence[str], *, seed: int, falling: Collection[str] = ()
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
        weighted = weight > 0.0
        if not weighted.any():
            raise ValueError("all weights are zero")
        takes_weights = sample_weight is not None and has_fit_parameter(
            self.regressor, "sample_weight"
        )
        weights = {"sample_weight": weight[weighted]} if takes_weights else {}
        self.regressor_ = clone(self.regressor).fit(X[weighted], y[weighted], **weights)
        self.low_, self.high_ = float(y[weighted].min()), float(y[weighted].max())
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
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        what = " ".join(str(error).split()) or type(error).__name__
        raise UsageError(f"--estimator {name}: {what[:200]}") from None
    return Bounded(regressor)
