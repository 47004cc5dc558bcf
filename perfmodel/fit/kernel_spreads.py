"""Intervals of one part: quantiles of what was predicted without having been seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from perfmodel.fit.kernel_growth import Growths, carried_on, growths, trusts
from perfmodel.fit.kernel_samples import Samples
from perfmodel.fit.kernel_trees import Grow, answers
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
    data: Samples, weight: Floats, matrix: np.ndarray, grow: Grow, *, seed: int, grows: bool
) -> HeldOut:
    """Trees grown without a fifth of the rows, twice; `grows` says whether sizes extrapolate."""
    generator = np.random.default_rng(seed)
    drawn = generator.random(len(data.target)) < _HELD_FRAC
    largest = _largest(data)
    without = _answers_without(largest, data, weight, matrix, grow)
    found: Growths = growths(data, ~largest) if grows else {}
    trust = trusts(data, without, largest, found)
    without = carried_on(data, without, found, trust)
    return HeldOut(
        _residual(drawn, data, _answers_without(drawn, data, weight, matrix, grow)),
        _residual(largest, data, without),
        trust,
    )


def spreads(
    data: Samples, weight: Floats, held: HeldOut, left_out: Mapping[str, Floats]
) -> dict[str, Spread]:
    """Per op and in all; `left_out` are log factors predicted for devices left out."""
    unseen = np.full(len(data.target), np.nan)
    for device, predicted in left_out.items():
        own = data.devices == device
        unseen[own] = data.target[own] - predicted
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
    held: np.ndarray, data: Samples, weight: Floats, matrix: np.ndarray, grow: Grow
) -> Floats:
    if not held.any() or held.all():
        return np.full(len(held), np.nan)
    return answers(grow(matrix[~held], data.target[~held], weight[~held]), matrix)


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
