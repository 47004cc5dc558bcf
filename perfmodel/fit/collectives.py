"""The collective model from published curves: constants, then trees on what they leave.

Errors, intervals and the covariance of corrections come from repositories that were left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from datetime import date
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.model_selection import LeaveOneGroupOut, cross_val_predict
from sklearn.utils.validation import check_is_fitted
from xgboost import XGBRegressor

from perfmodel.errors import ModelError
from perfmodel.fit.collective_constants import fit_constants
from perfmodel.fit.collective_covariance import fit_covariance
from perfmodel.fit.collective_data import MOST_ALIKE, SCORED_BYTES, Measured, read_measured
from perfmodel.network.calibration import Covariance
from perfmodel.network.calls import Calls
from perfmodel.network.features import features_of
from perfmodel.network.heuristic import costs_of
from perfmodel.network.learned import ONE_NODE, SEVERAL, Z90, Learned
from perfmodel.network.store import NAME
from perfmodel.network.trees import of_dumps
from perfmodel.ops.spec import Floats

MOST = 0.7
FEWEST_REPOSITORIES = 2
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


def fit_collectives(
    pairs: Sequence[tuple[str, str]], begin: Callable[[str], None] = lambda name: None
) -> Learned:
    """The model from tables of curves and of points; `ModelError` for what cannot be used."""
    measured, left_out = read_measured(pairs)
    _require_several(measured, pairs[0][0])
    begin("all repositories")
    X, y = _table(measured.calls), np.log(measured.time_us)
    weight = np.where(measured.alike < MOST_ALIKE, measured.weight, 0.0)
    model = CollectiveRegressor().fit(X, y, weight).model_
    begin("each repository left out")
    log_us = cross_val_predict(
        CollectiveRegressor(),
        X,
        y,
        groups=measured.repo,
        cv=LeaveOneGroupOut(),
        params={"sample_weight": weight},
    )
    spreads, covariances = {}, {}
    for kind, is_remote in ((ONE_NODE, False), (SEVERAL, True)):
        chosen = measured.calls.is_remote == is_remote
        part, ratio = measured.where(chosen), (y - log_us)[chosen]
        scored = part.calls.size_bytes >= SCORED_BYTES
        spreads[kind] = _spread(ratio[scored], part.weight[scored])
        covariances[kind] = fit_covariance(part, ratio)
    about = _about(measured, left_out)
    return replace(model, spreads=spreads, covariances=covariances, about=about)


def _require_several(measured: Measured, where: str) -> None:
    """Raise `ModelError` where there is nothing to leave out."""
    scored = measured.calls.size_bytes >= SCORED_BYTES
    for words, is_remote in (("within a node", False), ("over several nodes", True)):
        found = len(np.unique(measured.repo[scored & (measured.calls.is_remote == is_remote)]))
        if found < FEWEST_REPOSITORIES:
            raise ModelError(
                f"{where}: usable curves {words} of {found} repositories; errors are those of "
                f"repositories left out: expected at least {FEWEST_REPOSITORIES}"
            )


class CollectiveRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Logarithm of a collective's microseconds: constants by least squares, then trees on the rest.

    `X` is a frame with the columns of `Calls`. Rows of weight 0 are left out of the fit.
    """

    def __init__(self, trees: Any = _TREES) -> None:
        self.trees = trees

    def fit(self, X: pd.DataFrame, y: Floats, sample_weight: Floats) -> CollectiveRegressor:
        """Intervals of `model_` are placeholders until repositories were left out."""
        told = np.flatnonzero(sample_weight)
        calls, y, weight = _calls(X.iloc[told]), np.asarray(y)[told], sample_weight[told]
        constants = fit_constants(calls, y, weight)
        costs = costs_of(calls, constants)
        features = pd.DataFrame(features_of(calls, costs))
        target = y - np.log(costs.total_us)
        trees = clone(self.trees).fit(features, target, sample_weight=weight)
        dumps = trees.get_booster().get_dump(dump_format="json")
        columns = tuple(features)
        prior = Covariance(0.1, 0.2, 0.3, 12.0, 0.1, 1.5, 0.04)
        self.model_ = Learned(
            name=NAME,
            constants=constants,
            columns=columns,
            trees=of_dumps([json.loads(each) for each in dumps], 0.0, columns),
            most=MOST,
            spreads={ONE_NODE: 0.2, SEVERAL: 0.35},
            covariances={ONE_NODE: prior, SEVERAL: prior},
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


def _spread(ratio: Floats, weight: Floats) -> float:
    """Standard deviation that gives a 90 % interval as wide as the errors' own."""
    order = np.argsort(np.abs(ratio))
    share = np.cumsum(weight[order]) / weight.sum()
    reach = np.abs(ratio)[order][min(int(np.searchsorted(share, 0.9)), len(order) - 1)]
    return round(float(reach) / Z90, 4)


def _about(measured: Measured, left_out: dict[str, str]) -> dict[str, Any]:
    names, counts = np.unique(measured.repo, return_counts=True)
    return {
        "source": "fitted to public measurements (nccl-tests, rccl-tests and their like)",
        "repositories": {
            str(name): {
                "rows": int(count),
                "curves": len(np.unique(measured.curve[measured.repo == name])),
            }
            for name, count in zip(names, counts, strict=True)
        },
        "rows": len(measured),
        "curves_left_out": len(left_out),
        "date": date.today().isoformat(),
        "intervals": "from repositories that were left out",
    }
