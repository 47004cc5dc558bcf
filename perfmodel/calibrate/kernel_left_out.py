"""What trees and physics say of chips that they have not seen, and which mixture is nearest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.model_selection import LeaveOneGroupOut

from perfmodel.arrays import Floats, Mask
from perfmodel.calibrate.kernel_samples import Samples
from perfmodel.cost.learned.corrections import carried_log_factors
from perfmodel.cost.learned.devices import COLUMNS, distance, kinship, nearest, same_maker, usual
from perfmodel.cost.learned.same_kernels import same_kernels_dtype

_QUANTILES = np.array([0.05, 0.95])
_WIDEST = 3.0
_FEWEST = 20
_FEW = 500
"""Rows per device, op and dtype that trees are fitted to when devices are left out."""
_MAX_ERROR = 2.0
_SHARES = (1.0, 0.75, 0.5, 0.25, 0.0)
"""Of equal ones the first is taken: all trees, where too few chips were measured to tell."""


@dataclass(frozen=True)
class Mixture:
    """How chips left out are answered nearest, and those answers.

    `answer` and `physics` are log factors `[n]` of fits that saw nothing of the row's chip: of the
    mixture and of its physics alone, NaN of rows not asked about. `centre` is what physics is off.
    `by_trees` `[n]` says of which rows the trees had a say: chips of a maker of whom no other was
    measured have physics.
    """

    share: float
    as_nearest: bool
    centre: Mapping[str, float]
    answer: Floats
    physics: Floats
    by_trees: Mask


def ends_of(residual: Floats) -> tuple[float, float]:
    known = residual[np.isfinite(residual)]
    if len(known) < _FEWEST:
        return (-0.5, 0.5)
    low, high = np.quantile(known, _QUANTILES)
    return float(max(low, -_WIDEST)), float(min(high, _WIDEST))


def chips_of(data: Samples) -> np.ndarray:
    """`[n]`: devices that are alike have one number, since they are left out together."""
    descriptions = [data.seen_as[name] for name in data.known]
    numbers = list(range(len(descriptions)))
    for i, one in enumerate(descriptions):
        for j, other in enumerate(descriptions[:i]):
            if kinship(distance(one, other)) > 0.0:
                numbers = [numbers[j] if each == numbers[i] else each for each in numbers]
    chip = dict(zip(data.known, numbers, strict=True))
    return np.array([chip[name] for name in data.devices])


def few_of_each(data: Samples, seed: int) -> np.ndarray:
    asked = np.zeros(len(data.target), bool)
    generator = np.random.default_rng(seed)
    for index in data.frame.groupby(["device", "op", "dtype"], sort=True).indices.values():
        few = generator.choice(index, _FEW, replace=False) if len(index) > _FEW else index
        asked[few] = True
    return asked


def chips_left_out(
    data: Samples, asked: np.ndarray, chips: np.ndarray, trees: Any
) -> dict[bool, Floats]:
    """Log factors of the rows `asked` `[n]` about, by clones of `trees` fitted to other chips.

    True: each device is asked about as the nearest of its maker among those where its op was
    measured; False: with its own figures. NaN where nothing was measured of its maker.
    """
    matrix = data.with_devices(COLUMNS)
    log_errors = {seen_as: np.full(len(data.target), np.nan) for seen_as in (True, False)}
    if len(set(chips)) < 2:
        return log_errors
    places = np.flatnonzero(asked)
    kinds = (data.frame["op"] + "/" + data.frame["dtype"].map(same_kernels_dtype)).to_numpy()
    for trained, left_out in LeaveOneGroupOut().split(places, groups=chips[places]):
        trained, left_out = places[trained], places[left_out]
        fitted = clone(trees).fit(
            matrix[trained], data.target[trained], sample_weight=data.weight[trained]
        )
        rows = data.frame.iloc[left_out].assign(kind=kinds[left_out])
        for (device, kind), own in rows.groupby(["device", "kind"], sort=True).indices.items():
            index, own_kind = left_out[own], kinds[trained] == kind
            description = data.seen_as[device]
            near = [data.seen_as[name] for name in sorted(set(data.devices[trained[own_kind]]))]
            near = [each for each in near if same_maker(each, description)]
            if near:
                like = nearest(description, near)[0]
                seen_as = {True: like, False: description}
                for key, figures in seen_as.items():
                    asked_about = matrix[index].copy()
                    asked_about[:, len(data.figures) :] = [figures[name] for name in COLUMNS]
                    log_errors[key][index] = carried_log_factors(
                        fitted.predict(asked_about), data.on_chip_frac[index], like, description
                    )
    return log_errors


def nearest_mixture(
    data: Samples, asked: np.ndarray, chips: np.ndarray, answers: Mapping[bool, Floats]
) -> Mixture:
    """The shares of the trees' answers (`answers`, by whether of the nearest device) and physics,
    alone or centred, that are nearest to the rows `asked` `[n]` about of chips left out.

    Rows of which the trees say nothing have physics.
    """
    found: list[tuple[float, Mixture]] = []
    for physics, centre in physics_left_out(data, asked, chips):
        for as_nearest, each in answers.items():
            for share in _SHARES:
                mixed = share * each + (1.0 - share) * physics
                answer = np.where(np.isfinite(each), mixed, physics)
                off = data.target[asked] - answer[asked]
                error = error_left_out(off, data.support[asked], chips[asked])
                mixture = Mixture(share, as_nearest, centre, answer, physics, np.isfinite(each))
                found.append((error, mixture))
    return min(found, key=lambda each: each[0])[1]


def physics_left_out(
    data: Samples, asked: np.ndarray, chips: np.ndarray
) -> list[tuple[Floats, dict[str, float]]]:
    """(log factors `[n]`, what it is off on all chips) of physics alone and of physics with what it
    is off on the other chips; NaN of rows not `asked` about."""
    alone, off = np.where(asked, data.power_log, np.nan), data.target - data.power_log
    centred = alone.copy()
    for chip in sorted(set(chips[asked])):
        others = asked & (chips != chip)
        elsewhere = centres(off, data.support, data.ops, chips, others)
        known = [data.seen_as[name] for name in sorted(set(data.devices[others]))]
        for device in sorted(set(data.devices[asked & (chips == chip)])) if known else ():
            index = np.flatnonzero(asked & (data.devices == device))
            centre = np.array([elsewhere.get(op, elsewhere["*"]) for op in data.ops[index]])
            centred[index] += carried_log_factors(
                centre, data.on_chip_frac[index], usual(known), data.seen_as[device]
            )
    return [(alone, {}), (centred, centres(off, data.support, data.ops, chips, asked))]


def centres(
    off: Floats, support: Floats, ops: np.ndarray, chips: np.ndarray, among: np.ndarray
) -> dict[str, float]:
    """Per op, and `*` for all: the median over chips of the medians of `off` `[n]`, of rows that
    count by what they tell of their kernels."""

    def median(own: np.ndarray) -> float:
        each = [own & (chips == chip) for chip in sorted(set(chips[own]))]
        return float(np.median([quantiles(off[rows], support[rows], 0.5) for rows in each]))

    by_op = {op: median(among & (ops == op)) for op in sorted(set(ops[among]))}
    return by_op | {"*": median(among)} if by_op else {}


def error_left_out(off: Floats, support: Floats, chips: np.ndarray) -> float:
    """Median and mean over chips, added, of their mean absolute error `off` `[n]`, where rows count
    by what they tell; outliers count as 2."""
    size = np.minimum(np.abs(off), _MAX_ERROR)
    each = [chips == chip for chip in sorted(set(chips))]
    by_chip = [np.average(size[own], weights=support[own]) for own in each] or [0.0]
    return float(np.median(by_chip) + np.mean(by_chip))


def quantiles(values: Floats, weight: Floats, at: Floats | float) -> Floats:
    """The quantiles `at` of `values` `[n]` that count by `weight`, each the middle of its share."""
    order = np.argsort(values, kind="stable")
    place = np.cumsum(weight[order]) - 0.5 * weight[order]
    return np.asarray(np.interp(np.multiply(at, weight.sum()), place, values[order]))


def ends_left_out(residual: Floats, support: Floats, chips: np.ndarray) -> tuple[float, float]:
    """5 and 95 % of `residual` `[n]` (NaN: not known) of rows that count by what they tell, each
    chip once, wider by `sqrt(1 + 1 / chips)`: what few show is itself off, as the next chip is."""
    known = np.isfinite(residual)
    by_chip = [known & (chips == chip) for chip in sorted(set(chips[known]))]
    by_chip = [own for own in by_chip if own.sum() >= _FEWEST]
    if len(by_chip) < 2:
        return ends_of(residual)
    weight = np.zeros(len(residual))
    for own in by_chip:
        weight[own] = support[own] / support[own].sum()
    counted = weight > 0.0
    low, high = quantiles(residual[counted], weight[counted], _QUANTILES)
    middle, half = 0.5 * (low + high), 0.5 * (high - low) * np.sqrt(1.0 + 1.0 / len(by_chip))
    return float(max(middle - half, -_WIDEST)), float(min(middle + half, _WIDEST))
