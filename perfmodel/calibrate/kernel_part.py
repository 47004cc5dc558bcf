"""Fitting one part of a family: trees, how much they say of devices left out, and intervals.

Longer than 400 lines: every step leaves the same chips out of the same rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.model_selection import LeaveOneGroupOut, ShuffleSplit

from perfmodel.arrays import Floats
from perfmodel.calibrate.estimators import KNOWN_TREES, KNOWN_TREES_OF_PART, Bounded, trees_or
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
from perfmodel.cost.learned.devices import COLUMNS, distance, kinship, nearest, same_maker
from perfmodel.cost.learned.features import Tiles
from perfmodel.cost.learned.part import (
    NAMED,
    Part,
    Places,
    Spread,
    known_device_columns,
    same_kernels_dtype,
)
from perfmodel.cost.learned.store import pack_estimator
from perfmodel.ops.rows import Rows

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


@dataclass(frozen=True)
class Mixture:
    """How chips left out are answered nearest, and those answers.

    `answer` and `physics` are log factors `[n]` of fits that saw nothing of the row's chip: of the
    mixture and of its physics alone, NaN of rows not asked about. `centre` is what physics is off.
    """

    share: float
    as_nearest: bool
    centre: Mapping[str, float]
    answer: Floats
    physics: Floats


def spreads(data: Samples, held: HeldOut, mixture: Mixture, chips: np.ndarray) -> dict[str, Spread]:
    """Per op and in all."""
    found = {}
    taught, physics, centre = mixture.answer, mixture.physics, mixture.centre
    of_all = [ends_left_out(data.target - each, chips) for each in (taught, physics)]
    named = Rows.from_frame(data.frame).in_framework() > 0.0
    ops = sorted(set(data.ops))
    for key in ["*", *ops, *(f"{op}{NAMED}" for op in ops if (named & (data.ops == op)).any())]:
        op = key.removesuffix(NAMED)
        own = ((data.ops == op) | (op == "*")) & (data.weight > 0.0)
        own = own & (named if key != op else ~named)
        own = own if own.any() else data.weight > 0.0
        log_work = np.log(np.maximum(data.work[own], 1.0))
        drawn, largest = (_ends(each[own]) for each in (held.drawn, held.largest))
        few = len(set(chips[own & np.isfinite(physics)])) < _FEWEST_CHIPS
        unseen, alone = (
            ends if few else ends_left_out((data.target - each)[own], chips[own])
            for ends, each in zip(of_all, (taught, physics), strict=True)
        )
        found[key] = Spread(
            drawn,
            _union(drawn, (_FARTHER * largest[0], _FARTHER * largest[1])),
            _union(drawn, unseen),
            _union(drawn, alone),
            (float(log_work.min()), float(log_work.max())),
            centre.get(op, 0.0),
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


_FEWEST_ROWS, _MANY_ROWS = 100, 1000
_OUTLIER = np.log(2.0)
_FEWEST_ALIKE = 3
"""Chips of a maker, more of which can outvote one of them."""
_FEW = 500
"""Rows per device, op and dtype that trees are fitted to when devices are left out."""
_LEFT_OUT_TREES = {"n_estimators": 100, "num_parallel_tree": 1}
_MOST_ERROR = 2.0
_COVERED_FRAC = 0.9
_FEWEST_CHIPS = 4
"""From which an op has an interval of its own for devices left out; below, that of all ops."""
_SHARES = (1.0, 0.75, 0.5, 0.25, 0.0)
"""Of equal ones the first is taken: all trees, where too few chips were measured to tell."""
_WIDENINGS = np.arange(0.5, 4.01, 0.1)


@dataclass(frozen=True)
class FittedPart:
    """A part, what it was fitted on, and what was predicted for devices left out."""

    family: str
    part: Part
    data: Samples
    left_out: Floats
    """Log factors `[n]` by a part that saw nothing of the row's chip; NaN of rows not asked
    about."""
    aside: tuple[str, ...]
    """`device/op/dtype` that were not learned from."""


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
    aside = set_aside(data)
    keys = data.frame[["device", "op", "dtype"]].agg("/".join, axis=1)
    weight = np.where(keys.isin(aside) | ~_is_told(data, _measured(data)), 0.0, data.weight)
    if not weight.any():  # few rows are all that there is
        weight = data.weight
    matrix, data = data.with_devices(COLUMNS), replace(data, weight=weight)
    gains = fitted_gains(data, build, weight, seed)
    measured, data = data, replace(data, target=data.target - gains.own)
    shape = KNOWN_TREES_OF_PART.get(name, KNOWN_TREES)
    trees = make(shape, names)
    grows = build in BUILDS_THAT_GROW
    held = held_out(data, weight, matrix, trees, seed=seed, grows=grows)
    chips = chips_of(data)
    asked = _few_of_each(data, seed) & (weight > 0.0)
    taught = chips_left_out(data, asked, chips, make(shape | _LEFT_OUT_TREES, names))
    taught = {seen_as: each + gains.of_others for seen_as, each in taught.items()}
    mixture = nearest_mixture(measured, asked, chips, taught)
    part = Part(
        name=name,
        build=build,
        dtypes=tuple(sorted(set(data.frame["dtype"]))),
        ops=ops,
        figures=data.figures,
        trees=pack_estimator(trees.fit(matrix, data.target, sample_weight=weight), name),
        share=mixture.share,
        as_nearest=mixture.as_nearest,
        devices=tuple(data.seen_as[name] for name in data.known),
        spreads=spreads(measured, held, mixture, chips),
        tiles=tiles,
        measured=_measured(measured),
        extensions=extensions(growths(data, weight > 0.0), held.trust) if grows else {},
        gains=gains.gains,
    )
    return FittedPart(family, part, measured, mixture.answer, aside)


def set_aside(data: Samples) -> tuple[str, ...]:
    """`device/op/dtype` of groups twice off what the maker's other devices show: other kernels ran
    there, which the rows do not say."""
    groups = data.frame.groupby(["device", "op", "dtype"], sort=True).indices
    lifted = data.target - data.lift
    medians = {key: float(np.median(lifted[index])) for key, index in groups.items()}
    chips, found = dict(zip(data.devices, chips_of(data), strict=True)), []
    for device, *kind in medians:
        alike = {
            other: each
            for (other, *its_kind), each in medians.items()
            if its_kind == kind and same_maker(data.seen_as[other], data.seen_as[device])
        }
        off = np.abs(np.array(list(alike.values())) - np.median(list(alike.values()))) > _OUTLIER
        agreed = len({chips[other] for other in alike}) > _FEWEST_ALIKE and off.mean() < 0.5
        if agreed and off[list(alike).index(device)]:
            found.append("/".join((device, *kind)))
    return tuple(found)


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


def _few_of_each(data: Samples, seed: int) -> np.ndarray:
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
    found = {seen_as: np.full(len(data.target), np.nan) for seen_as in (True, False)}
    if len(set(chips)) < 2:
        return found
    places = np.flatnonzero(asked)
    kinds = (data.frame["op"] + "/" + data.frame["dtype"].map(same_kernels_dtype)).to_numpy()
    for taught, left_out in LeaveOneGroupOut().split(places, groups=chips[places]):
        taught, left_out = places[taught], places[left_out]
        fitted = clone(trees).fit(
            matrix[taught], data.target[taught], sample_weight=data.weight[taught]
        )
        rows = data.frame.iloc[left_out].assign(kind=kinds[left_out])
        for (device, kind), own in rows.groupby(["device", "kind"], sort=True).indices.items():
            index, own_kind = left_out[own], kinds[taught] == kind
            description = data.seen_as[device]
            near = [data.seen_as[name] for name in sorted(set(data.devices[taught[own_kind]]))]
            near = [each for each in near if same_maker(each, description)]
            if near:
                seen_as = {True: nearest(description, near)[0], False: description}
                for key, figures in seen_as.items():
                    asked_about = matrix[index].copy()
                    asked_about[:, len(data.figures) :] = [figures[name] for name in COLUMNS]
                    found[key][index] = fitted.predict(asked_about)
    return found


def nearest_mixture(
    data: Samples, asked: np.ndarray, chips: np.ndarray, taught: Mapping[bool, Floats]
) -> Mixture:
    """The shares of the trees' answers (`taught`, by whether they are of the nearest device) and of
    physics, alone or centred, that are nearest to the rows `asked` `[n]` about of chips left out.

    Rows of which the trees say nothing have physics.
    """
    found: list[tuple[float, Mixture]] = []
    for physics, centre in physics_left_out(data, asked, chips):
        for as_nearest, each in taught.items():
            for share in _SHARES:
                mixed = share * each + (1.0 - share) * physics
                answer = np.where(np.isfinite(each), mixed, physics)
                error = error_left_out(data.target[asked], answer[asked], chips[asked])
                found.append((error, Mixture(share, as_nearest, centre, answer, physics)))
    return min(found, key=lambda each: each[0])[1]


def physics_left_out(
    data: Samples, asked: np.ndarray, chips: np.ndarray
) -> list[tuple[Floats, dict[str, float]]]:
    """(log factors `[n]`, what it is off on all chips) of physics alone and of physics with what it
    is off on the other chips; NaN of rows not `asked` about."""
    alone, off = np.where(asked, data.lift, np.nan), data.target - data.lift
    centred = alone.copy()
    for chip in sorted(set(chips[asked])):
        elsewhere = centres(off, data.ops, chips, asked & (chips != chip))
        for row in np.flatnonzero(asked & (chips == chip)):
            centred[row] += elsewhere.get(data.ops[row], elsewhere.get("*", 0.0))
    return [(alone, {}), (centred, centres(off, data.ops, chips, asked))]


def centres(off: Floats, ops: np.ndarray, chips: np.ndarray, among: np.ndarray) -> dict[str, float]:
    """Per op, and `*` for all: the median over chips of the medians of `off` `[n]`."""

    def median(own: np.ndarray) -> float:
        each = [np.median(off[own & (chips == chip)]) for chip in sorted(set(chips[own]))]
        return float(np.median(each))

    found = {op: median(among & (ops == op)) for op in sorted(set(ops[among]))}
    return found | {"*": median(among)} if found else {}


def error_left_out(target: Floats, answer: Floats, chips: np.ndarray) -> float:
    """Median and mean over chips, added, of their mean absolute error; outliers count as 2."""
    off = np.minimum(np.abs(target - answer), _MOST_ERROR)
    by_chip = [off[chips == chip].mean() for chip in sorted(set(chips))] or [0.0]
    return float(np.median(by_chip) + np.mean(by_chip))


def ends_left_out(residual: Floats, chips: np.ndarray) -> tuple[float, float]:
    """5 and 95 % of `residual` `[n]` (NaN: not known), each chip counted once, widened around their
    middle until nine of ten rows of a chip lie within what the others show, on average."""
    known = np.isfinite(residual)
    by_chip = [np.sort(residual[known & (chips == chip)]) for chip in sorted(set(chips[known]))]
    by_chip = [each for each in by_chip if len(each) >= _FEWEST]
    if len(by_chip) < 2:
        return _ends(residual)

    def ends(among: list[Floats], widening: float = 1.0) -> tuple[float, float]:
        count = min(len(each) for each in among)
        alike = [np.quantile(each, np.linspace(0.0, 1.0, count)) for each in among]
        low, high = np.quantile(np.concatenate(alike), _QUANTILES)
        middle, half = 0.5 * (low + high), 0.5 * (high - low)
        ends = middle - widening * half, middle + widening * half
        return float(max(ends[0], -_WIDEST)), float(min(ends[1], _WIDEST))

    def covered(widening: float) -> float:
        found = []
        for place, own in enumerate(by_chip):
            low, high = ends(by_chip[:place] + by_chip[place + 1 :], widening)
            found.append(float(((low <= own) & (own <= high)).mean()))
        return float(np.mean(found))

    enough = (each for each in _WIDENINGS if covered(each) >= _COVERED_FRAC)
    return ends(by_chip, float(next(enough, _WIDENINGS[-1])))


def _is_told(data: Samples, measured: Mapping[tuple[str, str], Places]) -> np.ndarray:
    """`[n]`: whether the row's device has rows enough of its op; few of a device that is treated as
    never seen would only pull at its neighbours."""
    names = list(data.known)
    kinds = [same_kernels_dtype(dtype) for dtype in data.frame["dtype"]]
    rows = zip(data.ops, kinds, data.devices, strict=True)
    told = {(*key, names[place]) for key, places in measured.items() for place in places}
    return np.array([row in told for row in rows], bool)


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
