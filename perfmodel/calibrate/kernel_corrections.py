"""Corrections beside the trees: growth beyond the largest rows, slopes of rare large values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from sklearn.linear_model import QuantileRegressor
from sklearn.model_selection import KFold, cross_val_predict

from perfmodel.arrays import Floats
from perfmodel.calibrate.estimators import KNOWN_TREES, boosted
from perfmodel.calibrate.kernel_samples import Samples
from perfmodel.cost.learned.corrections import (
    NONE,
    Extension,
    Gains,
    Growth,
    extrapolated_log_factors,
    line_of,
)
from perfmodel.cost.learned.devices import COLUMNS, describe
from perfmodel.cost.learned.features import GAINS

BUILDS_THAT_GROW = ("stream",)
"""Time beyond the domain is a matter of size alone, not of how tiles fall."""
_MIN_FOR_GROWTH = 40
_TRUSTS = (0.0, 0.5, 1.0)
Growths = Mapping[tuple[str, str], Growth]
"""By op and device."""


def growths(data: Samples, among: np.ndarray) -> Growths:
    """Of every op and device with enough rows `among` `[n]` (bool)."""
    kernel_us = data.base_us * np.exp(data.target)
    by_part = {}
    for (op, device), index in data.frame.groupby(["op", "device"], sort=True).indices.items():
        index = index[among[index]]
        if len(index) < _MIN_FOR_GROWTH:
            continue
        work = data.work[index]
        top = index[work >= np.median(work)]
        _, rate = line_of(data.base_us[top], kernel_us[top])
        if rate > 0.0:
            by_part[op, device] = Growth(describe(data.known[device]), float(work.max()), rate)
    return by_part


def growth_trusts(
    data: Samples, answers: Floats, held: np.ndarray, by_part: Growths
) -> dict[str, float]:
    """Per op, the trust in `found` under which the rows `held` out are predicted best.

    `answers` `[n]` are of trees that saw none of them; each device counts once.
    """
    ops = sorted({op for op, _ in by_part})
    return {
        op: min(_TRUSTS, key=lambda trust: _growth_error(data, answers, held, by_part, op, trust))
        for op in ops
    }


def _growth_error(
    data: Samples, answers: Floats, held: np.ndarray, by_part: Growths, op: str, trust: float
) -> float:
    errors = []
    for (each, device), growth in by_part.items():
        asked = held & (data.weight > 0.0)
        index = np.flatnonzero(asked & (data.devices == device) & (data.ops == op))
        if each == op and len(index):
            own = extrapolated_log_factors(answers[index], data.work[index], growth, trust)
            off = np.abs(data.target[index] - own)
            errors.append(float(np.average(off, weights=data.weight[index])))
    return float(np.mean(errors)) if errors else 0.0


def extrapolate(
    data: Samples, answers: Floats, by_part: Growths, trust: Mapping[str, float]
) -> Floats:
    """`answers` `[n]`, carried on beyond each op's and device's largest row."""
    result = answers.copy()
    for (op, device), growth in by_part.items():
        index = np.flatnonzero((data.devices == device) & (data.ops == op))
        result[index] = extrapolated_log_factors(
            answers[index], data.work[index], growth, trust[op]
        )
    return result


def extensions(by_part: Growths, trust: Mapping[str, float]) -> dict[str, Extension]:
    """What a model keeps: per op, the growth on every device, and how much of it is trusted."""
    return {
        op: Extension(share, tuple(each for (own, _), each in by_part.items() if own == op))
        for op, share in trust.items()
    }


_FOLDS = 3
_SHAPE = KNOWN_TREES | {"n_estimators": 120}
_LIKE = "align"
"""Beginning of the names of figures that tell the same: left out of the trees."""
_MIN_FOR_GAIN = 100
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
        if min(high.sum(), (~high).sum()) >= _MIN_FOR_GAIN:
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
    left_over = cross_val_predict(
        boosted(_SHAPE, names, seed=seed),
        np.hstack([data.matrix[:, kept], devices]),
        data.target,
        cv=folds,
        params={"sample_weight": weight},
    )
    return np.asarray(data.target - left_over)


def _slope(values: Floats, residual: Floats) -> float:
    """Of least absolute residuals, with an intercept; never rising."""
    line = QuantileRegressor(quantile=0.5, alpha=0.0).fit(values[:, None], residual)
    return float(np.clip(line.coef_[0], -_STEEPEST, 0.0))
