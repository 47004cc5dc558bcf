"""The collective model from published curves: constants, then trees on what they leave.

Errors, intervals and the covariance of corrections come from repositories that were left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

import numpy as np

from perfmodel.errors import ModelError
from perfmodel.fit.collective_constants import fit_constants
from perfmodel.fit.collective_covariance import fit_covariance
from perfmodel.fit.collective_data import SCORED_BYTES, Measured, read_measured
from perfmodel.kernels.learned.forest import Forest
from perfmodel.network.calibration import Covariance
from perfmodel.network.calls import Texts
from perfmodel.network.constants import Constants
from perfmodel.network.features import features_of
from perfmodel.network.heuristic import costs_of
from perfmodel.network.learned import ONE_NODE, SEVERAL, Z90, Learned
from perfmodel.network.store import NAME
from perfmodel.network.trees import of_dumps
from perfmodel.ops.spec import Floats

MOST = 0.7
FEWEST_REPOSITORIES = 2
_TREES = {
    "max_depth": 4,
    "learning_rate": 0.06,
    "min_child_weight": 3,
    "subsample": 0.7,
    "colsample_bytree": 0.6,
    "reg_lambda": 5,
    "objective": "reg:pseudohubererror",
    "huber_slope": 0.3,
    "base_score": 0.0,
    "seed": 0,
    "nthread": 1,
}
_ROUNDS = 150


@dataclass(frozen=True)
class LeftOut:
    """Predictions for every point by a model that never saw its group."""

    measured: Measured
    log_us: Floats

    @property
    def log_ratio(self) -> Floats:
        """log(measured / predicted)."""
        return np.asarray(np.log(self.measured.time_us) - self.log_us, np.float64)


def fit_collectives(
    pairs: Sequence[tuple[str, str]], begin: Callable[[str], None] = lambda name: None
) -> tuple[Learned, LeftOut]:
    """(the model, predictions for repositories left out) from tables of curves and of points.

    Raises `ModelError` for tables that cannot be used.
    """
    measured, left_out = read_measured(pairs)
    _require_several(measured, pairs[0][0])
    begin("all repositories")
    model = fit_model(measured)
    held = leave_out(measured, measured.repo, begin)
    spreads, covariances = {}, {}
    for kind, is_remote in ((ONE_NODE, False), (SEVERAL, True)):
        chosen = measured.calls.is_remote == is_remote
        part = held.measured.where(chosen)
        ratio = held.log_ratio[chosen]
        scored = part.calls.size_bytes >= SCORED_BYTES
        spreads[kind] = _spread(ratio[scored], part.weight[scored])
        covariances[kind] = fit_covariance(part, ratio)
    about = _about(measured, left_out)
    return replace(model, spreads=spreads, covariances=covariances, about=about), held


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


def fit_model(measured: Measured) -> Learned:
    """Constants and trees; intervals are placeholders until repositories were left out."""
    measured = measured.few_alike
    constants = fit_constants(measured)
    columns, trees = fit_trees(measured, constants)
    plain = Covariance(0.1, 0.2, 0.3, 12.0, 0.1, 1.5, 0.04)
    return Learned(
        name=NAME,
        constants=constants,
        columns=columns,
        trees=trees,
        most=MOST,
        spreads={ONE_NODE: 0.2, SEVERAL: 0.35},
        covariances={ONE_NODE: plain, SEVERAL: plain},
    )


def fit_trees(measured: Measured, constants: Constants) -> tuple[tuple[str, ...], Forest]:
    """(columns, trees) for log(measured / heuristic)."""
    import xgboost

    costs = costs_of(measured.calls, constants)
    found = features_of(measured.calls, costs)
    columns = tuple(found)
    matrix = np.stack([found[name] for name in columns], axis=1)
    target = np.log(measured.time_us / costs.total_us)
    table = xgboost.DMatrix(
        matrix, target, weight=measured.weight, feature_names=list(columns), nthread=1
    )
    booster = xgboost.train(_TREES, table, num_boost_round=_ROUNDS)
    import json

    dumps = [json.loads(each) for each in booster.get_dump(dump_format="json")]
    return columns, of_dumps(dumps, 0.0, columns)


def leave_out(
    measured: Measured, by: Texts, begin: Callable[[str], None] = lambda name: None
) -> LeftOut:
    """Each group of rows, as `by` names it, predicted by a model of the others."""
    log_us = np.full(len(measured), np.nan)
    for name in np.unique(by):
        inside = by == name
        begin(f"without {name}")
        model = fit_model(measured.where(~inside))
        log_us[inside] = model.log_us(measured.where(inside).calls)[0]
    return LeftOut(measured, log_us)


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
