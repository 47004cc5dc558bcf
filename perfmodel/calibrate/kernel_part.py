"""Fitting one part of a family: two ensembles of trees, their shrinkage and their intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.dummy import DummyRegressor
from sklearn.model_selection import LeaveOneGroupOut, ShuffleSplit

from perfmodel.arrays import Floats
from perfmodel.calibrate.estimators import (
    GENERAL_TREES,
    KNOWN_TREES,
    KNOWN_TREES_OF_PART,
    Bounded,
    Make,
    best_share,
    trees_or,
    without_group,
)
from perfmodel.calibrate.kernel_corrections import (
    BUILDS_THAT_GROW,
    Growths,
    extensions,
    extrapolate,
    fitted_gains,
    growth_trusts,
    growths,
)
from perfmodel.calibrate.kernel_samples import Samples
from perfmodel.cost.learned.corrections import Plain, kinds, log_base_over_bound, uses_plain_trees
from perfmodel.cost.learned.devices import COLUMNS, general_figures
from perfmodel.cost.learned.features import Tiles
from perfmodel.cost.learned.forest import Ensemble
from perfmodel.cost.learned.part import (
    Part,
    Places,
    Spread,
    known_device_columns,
    same_kernels_dtype,
)
from perfmodel.cost.learned.store import pack_estimator

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
    trust = growth_trusts(data, without, largest, found)
    without = extrapolate(data, without, found, trust)
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


_SHRINKS = (0.0, 0.25, 0.5, 0.75, 1.0)
_SHARES = (0.0, 0.25, 0.5, 0.75)
_OUTLIER = np.log(2.0)
_FEWEST_ALIKE = 3
_FEWEST_ROWS, _MANY_ROWS = 100, 1000


@dataclass(frozen=True)
class FittedPart:
    """A part, what it was fitted on, and what was predicted for devices left out."""

    family: str
    part: Part
    data: Samples
    left_out: Floats
    """Log factors `[n]` by a part that saw nothing of the row's device; NaN where there is only
    one device."""
    aside: tuple[str, ...]
    """`device/op/dtype` whose rows contradict all other devices', and were not learned from."""


def fit_part(
    family: str,
    name: str,
    build: str,
    ops: tuple[str, ...],
    data: Samples,
    tiles: Tiles,
    *,
    seed: int,
    regressor: Bounded | None = None,
) -> FittedPart:
    """The part `name` of a family, of boosted trees or of clones of `regressor`."""
    make = trees_or(regressor, build, seed)
    names = known_device_columns(data.figures)
    matrix = data.with_devices(COLUMNS)
    aside = _set_aside(data)
    keys = data.frame[["device", "op", "dtype"]].agg("/".join, axis=1)
    weight = np.where(keys.isin(aside), 0.0, data.weight)
    gains = fitted_gains(data, build, weight, seed)
    measured, data = data, replace(data, target=data.target - gains.own)
    general, plain, left_out, centre, shrink = _general(data, weight, name, build, make)
    known = make(KNOWN_TREES_OF_PART.get(name, KNOWN_TREES), names)
    grows = build in BUILDS_THAT_GROW
    held = held_out(data, weight, matrix, known, seed=seed, grows=grows)
    left_out = left_out + gains.of_others
    part = Part(
        name=name,
        build=build,
        dtypes=tuple(sorted(set(data.frame["dtype"]))),
        ops=ops,
        figures=data.figures,
        own=pack_estimator(known.fit(matrix, data.target, sample_weight=weight), name),
        general=general,
        centre=centre,
        shrink=shrink,
        devices=tuple(data.seen_as[name] for name in data.known),
        spreads=spreads(measured, weight, held, left_out),
        tiles=tiles,
        measured=_measured(measured),
        extensions=extensions(growths(data, weight > 0.0), held.trust) if grows else {},
        gains=gains.gains,
        plain=plain,
    )
    return FittedPart(family, part, measured, left_out, aside)


def _general(
    data: Samples, weight: Floats, name: str, build: str, make: Make
) -> tuple[Ensemble, Plain | None, Floats, float, float]:
    """(trees for devices never seen, trees without physics that have a say beside them, log factors
    `[n]` of both for devices left out, the mean factor, how far trees are trusted beyond it)."""
    figures = general_figures(name)
    matrix, lifted = data.with_devices(figures), data.target - data.lift
    trees = make(GENERAL_TREES, data.figures + figures)
    mean = DummyRegressor()
    left_out, shrink = np.full(len(lifted), np.nan), 0.5
    plain = None
    if len(set(data.devices)) > 1:
        raw = without_group(trees, matrix, lifted, weight, data.devices)
        usual = without_group(mean, matrix, lifted, weight, data.devices)
        shrink = best_share(_SHRINKS, usual, raw, lifted, data.weight, data.devices)
        left_out = data.lift + usual + shrink * (raw - usual)
        if shrink > 0.0:  # else nothing carries over from device to device
            plain, left_out = with_plain(data, weight, left_out, name, build, make)
    trees.fit(matrix, lifted, sample_weight=weight)
    mean.fit(matrix, lifted, sample_weight=weight)
    return pack_estimator(trees, name), plain, left_out, float(mean.constant_.item()), shrink


def with_plain(
    data: Samples, weight: Floats, left_out: Floats, name: str, build: str, make: Make
) -> tuple[Plain | None, Floats]:
    """Trees without physics, as much as devices left out show that they help, or None; and log
    factors `[n]` of both for devices left out, of each with the share that the others chose.

    `left_out` are those of the trees with physics.
    """
    says = np.array([uses_plain_trees(build, op) for op in data.ops], bool)
    if not says.any():
        return None, left_out
    names = data.sizes + kinds(data.figures) + COLUMNS
    matrix = np.hstack([data.size_matrix, _kinds_and_devices(data)])
    above, root = log_base_over_bound(data.base_us, data.bound_us), np.sqrt(weight)
    trees = make(GENERAL_TREES, names, falling=frozenset())
    answer = without_group(trees, matrix, data.target + above, root, data.devices) - above
    plain = np.where(says, answer, left_out)
    columns = (left_out, plain, data.target, data.weight, data.devices)
    blended = np.empty(len(plain))
    for others, held in LeaveOneGroupOut().split(matrix, groups=data.devices):
        share = best_share(_SHARES, *(each[others] for each in columns))
        blended[held] = (1.0 - share) * left_out[held] + share * plain[held]
    share = best_share(_SHARES, *columns)
    if not share:
        return None, blended
    trees.fit(matrix, data.target + above, sample_weight=root)
    return Plain(pack_estimator(trees, name), names, share), blended


def _kinds_and_devices(data: Samples) -> np.ndarray:
    kept = [data.figures.index(name) for name in kinds(data.figures)]
    figures = len(data.figures)
    whole = data.with_devices(COLUMNS)
    return whole[:, [*kept, *range(figures, whole.shape[1])]]


def _measured(data: Samples) -> dict[tuple[str, str], Places]:
    """By op and kind of dtype, the places of devices that have rows enough, alone or with alike.

    Many rows of one op tell of the others too; few do not.
    """
    kinds = np.array([same_kernels_dtype(dtype) for dtype in data.frame["dtype"]], object)
    names = list(data.known)
    alike = np.array([[data.seen_as[a] == data.seen_as[b] for b in names] for a in names])
    found: dict[tuple[str, str], Places] = {}
    for op, kind in sorted(set(zip(data.ops, kinds, strict=True))):
        same = kinds == kind
        rows, of_any = (
            alike @ np.array([(data.devices[among] == name).sum() for name in names])
            for among in (same & (data.ops == op), same)
        )
        enough = (rows >= _FEWEST_ROWS) | (of_any >= _MANY_ROWS)
        found[op, kind] = tuple(np.flatnonzero(enough).tolist())
    return found


def _set_aside(data: Samples) -> tuple[str, ...]:
    """`device/op/dtype` of groups twice off what the other devices show: other kernels ran."""
    groups = data.frame.groupby(["device", "op", "dtype"], sort=True).indices
    lifted = data.target - data.lift
    medians = {key: float(np.median(lifted[index])) for key, index in groups.items()}
    found = []
    for key, own in medians.items():
        alike = [each for other, each in medians.items() if other[1:] == key[1:]]
        if len(alike) > _FEWEST_ALIKE and abs(own - float(np.median(alike))) > _OUTLIER:
            found.append("/".join(key))
    return tuple(found)
