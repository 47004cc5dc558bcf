"""Slopes of the figure whose large values are rare, from what trees without it leave over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from sklearn.linear_model import QuantileRegressor
from sklearn.model_selection import KFold, cross_val_predict

from perfmodel.fit.estimators import KNOWN_TREES, boosted
from perfmodel.fit.kernel_samples import Samples
from perfmodel.kernels.learned.builds import GAINS
from perfmodel.kernels.learned.devices import COLUMNS
from perfmodel.kernels.learned.gains import NONE, Gains
from perfmodel.ops.spec import Floats

_FOLDS = 3
_SHAPE = KNOWN_TREES | {"n_estimators": 120}
_LIKE = "align"
"""Beginning of the names of figures that tell the same: left out of the trees."""
_FEWEST = 100
"""Rows with the figure above `_HIGH`, and below it, from which a slope is told."""
_HIGH = 2.0
_STEEPEST = 0.04
_LONG_FRAC = 0.3


@dataclass(frozen=True)
class FittedGains:
    """The slopes, and per row what they add: of its own device, and of the others' median."""

    gains: Gains
    own: Floats
    of_others: Floats


def fitted_gains(data: Samples, build: str, weight: Floats, seed: int) -> FittedGains:
    """Slopes per op and device; none for builds without such a figure."""
    nothing = np.zeros(len(data.target))
    if build not in GAINS:
        return FittedGains(NONE, nothing, nothing)
    figure = GAINS[build]
    values = data.matrix[:, data.figures.index(figure)].astype(np.float64)
    residual = _left_over(data, weight, seed)
    slopes: dict[str, dict[str, float]] = {}
    for (op, device), index in data.frame.groupby(["op", "device"], sort=True).indices.items():
        index = index[weight[index] > 0.0]
        if not len(index):
            continue
        index = index[data.base_us[index] >= np.quantile(data.base_us[index], _LONG_FRAC)]
        high = values[index] >= _HIGH
        if min(high.sum(), (~high).sum()) >= _FEWEST:
            slopes.setdefault(op, {})[device] = _slope(values[index], residual[index])
    places = {name: place for place, name in enumerate(data.known)}
    own, of_others = nothing.copy(), nothing.copy()
    for op, known in slopes.items():
        for device in data.known:
            index = np.flatnonzero((data.ops == op) & (data.devices == device))
            others = [slope for name, slope in known.items() if name != device]
            usual = float(np.median(list(known.values())))
            own[index] = known.get(device, usual) * values[index]
            of_others[index] = (float(np.median(others)) if others else 0.0) * values[index]
    kept: Mapping[str, Mapping[int, float]] = {
        op: {places[device]: slope for device, slope in known.items()}
        for op, known in slopes.items()
    }
    return FittedGains(Gains(figure, kept), own, of_others)


def _left_over(data: Samples, weight: Floats, seed: int) -> Floats:
    """Target less what trees that saw neither the row nor the figure say."""
    kept = [place for place, name in enumerate(data.figures) if not name.startswith(_LIKE)]
    names = (*(data.figures[place] for place in kept), *COLUMNS)
    devices = data.with_devices(COLUMNS)[:, len(data.figures) :]
    folds = KFold(_FOLDS, shuffle=True, random_state=seed)
    found = cross_val_predict(
        boosted(_SHAPE, names, seed=seed),
        np.hstack([data.matrix[:, kept], devices]),
        data.target,
        cv=folds,
        params={"sample_weight": weight},
    )
    return np.asarray(data.target - found)


def _slope(values: Floats, residual: Floats) -> float:
    """Of least absolute residuals, with an intercept; never rising."""
    line = QuantileRegressor(quantile=0.5, alpha=0.0).fit(values[:, None], residual)
    return float(np.clip(line.coef_[0], -_STEEPEST, 0.0))
