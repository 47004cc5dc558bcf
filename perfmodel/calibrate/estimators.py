"""The scikit-learn estimators of fits: boosted trees, a user's regressor.

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
from sklearn.base import BaseEstimator, MetaEstimatorMixin, RegressorMixin, clone, is_regressor
from sklearn.utils.validation import (
    _check_sample_weight,
    check_is_fitted,
    has_fit_parameter,
    validate_data,
)
from xgboost import XGBRegressor

from perfmodel.cost.learned.features import FALLING
from perfmodel.cost.learned.part import OWN_FRAC
from perfmodel.errors import UsageError

KNOWN_TREES = {"max_depth": 9, "learning_rate": 0.1, "min_child_weight": 10, "n_estimators": 250}
_FOREST = KNOWN_TREES | {
    "max_depth": 10,
    "min_child_weight": 3,
    "n_estimators": 100,
    "num_parallel_tree": 4,
}
KNOWN_TREES_OF_PART = {"matmul_fp32": _FOREST, "vector_rows": _FOREST}
"""Several trees per round where single ones answer by chance: at the edge of the domain."""
OWN_BUILDS = ("matmul",)
"""Of which a device with many rows has trees of its own too. Chosen by rows held out, drawn and
largest: the mean's error is 0.92, 0.92 and 0.97 of the shared trees' for products of 16, 32 and
fewer bits; for other builds it is greater, or no less where rows are the largest."""
OWN_TREES = KNOWN_TREES | {"n_estimators": 150}
"""Two thirds of the file and of the time of as many trees as are shared, and nearly as near."""
OWN_TREES_OF_PART = {
    "matmul_fp32": _FOREST | {"n_estimators": 50, "learning_rate": 0.15, "min_child_weight": 4}
}
"""Several per round, as the part's shared ones; half as many keep the files small."""
SEPARATE_TREES = {"max_depth": 6, "learning_rate": 0.05, "n_estimators": 300}
"""Of a framework's own, every row alike: chosen, as that they answer alone, on a fifth of the
shapes of PyTorch's products kept from a fit to half of an H100's, whose error (mean absolute
logarithm) they make 0.22 of what it was in fewer bits than 16."""
GENERAL_TREES = {"max_depth": 5, "learning_rate": 0.08, "min_child_weight": 20, "n_estimators": 150}
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


class WithOwn(MetaEstimatorMixin, RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """`shared` for the rows of all devices; half of it and half of a clone of `own` for those of a
    device that has many, fitted to them alone; for those of a framework of `frameworks` a clone of
    `separate`, fitted to them alone, each alike. `own` may be None.

    The first `width` columns are figures of rows, which `own` sees; the others are of devices.
    Columns of `frameworks`, none where there is no `separate`, are above 0 for rows of one each.
    """

    def __init__(
        self,
        shared: Any,
        own: Any,
        width: int,
        fewest: int = 1000,
        separate: Any = None,
        frameworks: Sequence[int] = (),
    ) -> None:
        self.shared = shared
        self.own = own
        self.width = width
        self.fewest = fewest
        self.separate = separate
        self.frameworks = frameworks

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> WithOwn:
        """Fit clones to `X` `[n, columns]`; `sample_weight` `[n]` of 0 counts as no row."""
        X, y = validate_data(self, X, y, y_numeric=True)
        weight = _check_sample_weight(sample_weight, X, ensure_non_negative=True)
        self.shared_ = clone(self.shared).fit(X, y, sample_weight=weight)
        self.own_ = {}
        for device, rows in self._by_device(X) if self.own is not None else ():
            rows = rows & (weight > 0.0)
            if rows.sum() >= self.fewest:
                own = clone(self.own).fit(
                    X[rows, : self.width], y[rows], sample_weight=weight[rows]
                )
                self.own_[device] = own
        self.separate_ = {}
        for column in self.frameworks:
            rows = (X[:, column] > 0.0) & (weight > 0.0)
            if rows.any():
                self.separate_[column] = clone(self.separate).fit(X[rows], y[rows])
        return self

    def predict(self, X: Any) -> Any:
        """One answer per row of `X` `[n, columns]`."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False)
        answers = np.asarray(self.shared_.predict(X), np.float64)
        for device, rows in self._by_device(X):
            if device in self.own_:
                own = self.own_[device].predict(X[rows, : self.width])
                answers[rows] += OWN_FRAC * (own - answers[rows])
        for column, separate in self.separate_.items():
            rows = X[:, column] > 0.0
            if rows.any():
                answers[rows] = separate.predict(X[rows])
        return answers

    def _by_device(self, X: Any) -> list[tuple[tuple[float, ...], Any]]:
        """(its columns, `[n]` bool whether a row is its) of each device in `X`."""
        devices = X[:, self.width :]
        return [(tuple(each), (devices == each).all(axis=1)) for each in np.unique(devices, axis=0)]


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


def trees_or(given: Bounded | None, build: str, seed: int) -> Make:
    """What the regressors of a part are made by: boosted trees, or clones of the `given` one."""
    if given is None:
        falling = frozenset(FALLING.get(build, ()))
        return partial(boosted, seed=seed, falling=falling)
    return lambda shape, names, **_: clone(given)
