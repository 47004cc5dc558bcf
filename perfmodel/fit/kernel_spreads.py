"""Intervals of one part: quantiles of what was predicted without having been seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.model_selection import ShuffleSplit

from perfmodel.fit.kernel_growth import Growths, carried_on, growths, trusts
from perfmodel.fit.kernel_samples import Samples
from perfmodel.kernels.learned.part import Spread
from perfmodel.ops.spec import Floats

_QUANTILES = (0.05, 0.95)
_WIDEST = 3.0
_FEWEST = 20
_HELD_FRAC = 0.2
_CLEAR = 1.3
_LEAST_QUANTILE = 0.02
_FARTHER = 2.0
"""Intervals outside the domain against those of its largest rows: what comes is farther still."""


@dataclass(frozen=True)
class HeldOut:
    """Residuals `[n]` of rows held out, NaN elsewhere: drawn ones, and the largest ones.

    `trust` is that in the growth beyond the domain, chosen on the largest.
    """

    drawn: Floats
    largest: Floats
    trust: Mapping[str, float]


def held_out(
    data: Samples, weight: Floats, matrix: np.ndarray, known: Any, *, seed: int, grows: bool
) -> HeldOut:
    """The estimator `known`, fitted without a fifth of the rows, twice; `grows` says whether sizes
    extrapolate."""
    split = ShuffleSplit(1, test_size=_HELD_FRAC, random_state=seed)
    drawn = np.zeros(len(data.target), bool)
    drawn[next(split.split(matrix))[1]] = True
    largest = _largest(data)
    without = _answers_without(largest, data, weight, matrix, known)
    found: Growths = growths(data, ~largest) if grows else {}
    trust = trusts(data, without, largest, found)
    without = carried_on(data, without, found, trust)
    return HeldOut(
        _residual(drawn, data, _answers_without(drawn, data, weight, matrix, known)),
        _residual(largest, data, without),
        trust,
    )


def spreads(data: Samples, weight: Floats, held: HeldOut, left_out: Floats) -> dict[str, Spread]:
    """Per op and in all; `left_out` are log factors `[n]` predicted for devices left out."""
    unseen = data.target - left_out
    told, found = weight > 0.0, {}
    for op in ["*", *sorted(set(data.ops))]:
        own = ((data.ops == op) | (op == "*")) & told
        log_work = np.log(np.maximum(data.work[own] if own.any() else data.work, 1.0))
        drawn, largest, other = (_ends(each[own]) for each in (held.drawn, held.largest, unseen))
        found[op] = Spread(
            drawn,
            _union(drawn, (_FARTHER * largest[0], _FARTHER * largest[1])),
            _union(drawn, other),
            (float(log_work.min()), float(log_work.max())),
            _least_us(data, own),
        )
    return found


def _least_us(data: Samples, own: np.ndarray) -> float:
    """The shortest kernels that rose above the floors of what was measured."""
    measured = data.frame["duration_us"].to_numpy(np.float64)
    clear = own & (measured > _CLEAR * data.floor_us)
    if clear.any():
        return float(np.quantile(data.base_us[clear], _LEAST_QUANTILE))
    return float(data.base_us[own].max()) if own.any() else float(data.base_us.max())


def _answers_without(
    held: np.ndarray, data: Samples, weight: Floats, matrix: np.ndarray, known: Any
) -> Floats:
    if not held.any() or held.all():
        return np.full(len(held), np.nan)
    others = clone(known).fit(matrix[~held], data.target[~held], sample_weight=weight[~held])
    return np.asarray(others.predict(matrix), np.float64)


def _residual(held: np.ndarray, data: Samples, predicted: Floats) -> Floats:
    return np.where(held, data.target - predicted, np.nan)


def _largest(data: Samples) -> np.ndarray:
    held = np.zeros(len(data.target), bool)
    for index in data.frame.groupby(["device", "op", "dtype"], sort=False).indices.values():
        work = data.work[index]
        held[index[work > np.quantile(work, 1.0 - _HELD_FRAC)]] = True
    return held


def _ends(residual: Floats) -> tuple[float, float]:
    known = residual[np.isfinite(residual)]
    if len(known) < _FEWEST:
        return (-0.5, 0.5)
    low, high = np.quantile(known, _QUANTILES)
    return float(max(low, -_WIDEST)), float(min(high, _WIDEST))


def _union(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    return min(one[0], other[0]), max(one[1], other[1])
