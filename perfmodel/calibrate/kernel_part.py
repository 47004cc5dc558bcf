"""Fitting one part of a family: trees, how much they say of devices left out, and intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.model_selection import GroupShuffleSplit

from perfmodel.arrays import Floats
from perfmodel.calibrate.estimators import (
    KNOWN_TREES,
    KNOWN_TREES_OF_PART,
    OWN_BUILDS,
    OWN_TREES,
    OWN_TREES_OF_PART,
    SEPARATE_TREES,
    Bounded,
    WithOwn,
    trees_or,
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
from perfmodel.calibrate.kernel_left_out import (
    Mixture,
    chips_left_out,
    chips_of,
    ends_left_out,
    ends_of,
    few_of_each,
    nearest_mixture,
)
from perfmodel.calibrate.kernel_samples import Samples
from perfmodel.cost.learned.devices import COLUMNS, Description, same_maker
from perfmodel.cost.learned.features import IN_FRAMEWORK, NOT_BELOW, ROUNDING
from perfmodel.cost.learned.part import (
    Part,
    Places,
    SeparateTrees,
    Spread,
    known_device_columns,
    spread_key,
)
from perfmodel.cost.learned.same_kernels import same_kernels_dtype
from perfmodel.cost.learned.store import pack_estimator
from perfmodel.cost.learned.tiles import Tiles
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS

_HELD_FRAC = 0.2
_CLEAR = 1.3
_MIN_QUANTILE = 0.02
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
    """The estimator `known`, fitted without a fifth of the shapes, and without the largest fifth of
    the rows; `grows` says whether sizes extrapolate.

    A shape that was measured in several ways would else tell of itself.
    """
    split = GroupShuffleSplit(1, test_size=_HELD_FRAC, random_state=seed)
    drawn = np.zeros(len(data.target), bool)
    drawn[next(split.split(matrix, groups=_shapes(data)))[1]] = True
    largest = _largest(data)
    without = _answers_without(largest, data, weight, matrix, known)
    held: Growths = growths(data, ~largest) if grows else {}
    trust = growth_trusts(data, without, largest, held)
    without = extrapolate(data, without, held, trust)
    return HeldOut(
        _residual(drawn, data, _answers_without(drawn, data, weight, matrix, known)),
        _residual(largest, data, without),
        trust,
    )


def spreads(data: Samples, held: HeldOut, mixture: Mixture, chips: np.ndarray) -> dict[str, Spread]:
    """Per op and in all. Errors of chips that had physics alone say nothing of the trees'."""
    spread_of = {}
    of_trees, centre = np.where(mixture.by_trees, mixture.answer, np.nan), mixture.centre
    left_out = [data.target - each for each in (of_trees, mixture.physics)]
    of_all = [ends_left_out(each, data.support, chips) for each in left_out]
    framework = Rows.from_frame(data.frame).in_framework()
    kinds = sorted(set(zip(data.ops, framework, strict=True)) | {(op, 0.0) for op in data.ops})
    for op, code in [("*", 0.0), *kinds]:
        own = ((data.ops == op) | (op == "*")) & (framework == code) & (data.weight > 0.0)
        own = own if own.any() else data.weight > 0.0
        log_work = np.log(np.maximum(data.work[own], 1.0))
        drawn, largest = (ends_of(each[own]) for each in (held.drawn, held.largest))
        unseen, alone = (
            ends_left_out(each[own], data.support[own], chips[own])
            if len(set(chips[own & np.isfinite(each)])) >= _MIN_CHIPS
            else ends
            for ends, each in zip(of_all, left_out, strict=True)
        )
        spread_of[spread_key(op, code)] = Spread(
            drawn,
            _union(drawn, (_FARTHER * largest[0], _FARTHER * largest[1])),
            unseen,
            alone,
            (float(log_work.min()), float(log_work.max())),
            centre.get(op, 0.0),
            _least_us(data, own),
        )
    return spread_of


def _least_us(data: Samples, own: np.ndarray) -> float:
    """The shortest kernels that rose above the floors of what was measured."""
    measured = data.frame["duration_us"].to_numpy(np.float64)
    clear = own & (measured > _CLEAR * data.floor_us)
    if clear.any():
        return float(np.quantile(data.base_us[clear], _MIN_QUANTILE))
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


def _shapes(data: Samples) -> np.ndarray:
    """`[n]`: rows of one op with the same dims have one number."""
    names = [name for op in sorted(set(data.ops)) for name in OPS[op].dims if name in data.frame]
    return np.asarray(data.frame.groupby(["op", *dict.fromkeys(names)], dropna=False).ngroup())


def _largest(data: Samples) -> np.ndarray:
    held = np.zeros(len(data.target), bool)
    for index in data.frame.groupby(["device", "op", "dtype"], sort=False).indices.values():
        work = data.work[index]
        held[index[work > np.quantile(work, 1.0 - _HELD_FRAC)]] = True
    return held


def _union(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    return min(one[0], other[0]), max(one[1], other[1])


_MIN_ROWS, _MANY_ROWS = 100, 1000
_OUTLIER = np.log(2.0)
_MIN_ALIKE = 3
"""Chips of a maker, more of which can outvote one of them."""
_LEFT_OUT_TREES = {"n_estimators": 100, "num_parallel_tree": 1}
_MIN_CHIPS = 4
"""From which an op has an interval of its own for devices left out; below, that of all ops."""


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
    weight = np.where(keys.isin(aside) | ~_is_supported(data, _measured(data)), 0.0, data.weight)
    if not weight.any():  # few rows are all that there is
        weight = data.weight
    matrix, data = data.with_devices(COLUMNS), replace(data, weight=weight)
    gains = fitted_gains(data, build, weight, seed)
    measured, data = data, replace(data, target=data.target - gains.own)
    shape = KNOWN_TREES_OF_PART.get(name, KNOWN_TREES)
    has_own = regressor is None and build in OWN_BUILDS
    own = make(OWN_TREES_OF_PART.get(name, OWN_TREES), data.figures) if has_own else None
    frameworks = _work_separately(data) if has_own else {}
    trees = WithOwn(
        make(shape, names),
        own,
        len(data.figures),
        separate=make(SEPARATE_TREES, names) if frameworks else None,
        frameworks=tuple(frameworks),
    )
    grows = build in BUILDS_THAT_GROW
    held = held_out(data, weight, matrix, trees, seed=seed, grows=grows)
    chips = chips_of(data)
    asked = few_of_each(data, seed) & (weight > 0.0)
    answers = chips_left_out(data, asked, chips, make(shape | _LEFT_OUT_TREES, names))
    answers = {seen_as: each + gains.of_others for seen_as, each in answers.items()}
    mixture = nearest_mixture(measured, asked, chips, answers)
    trees.fit(matrix, data.target, sample_weight=weight)
    devices = tuple(data.seen_as[name] for name in data.known)
    part = Part(
        name=name,
        build=build,
        dtypes=tuple(sorted(set(data.frame["dtype"]))),
        ops=ops,
        figures=data.figures,
        trees=pack_estimator(trees.shared_, name),
        own={_place(own, devices): pack_estimator(each, name) for own, each in trees.own_.items()},
        separate=tuple(
            _separate(data, data.matrix[:, column] > 0.0, frameworks[column], each, name)
            for column, each in trees.separate_.items()
        ),
        share=mixture.share,
        as_nearest=mixture.as_nearest,
        devices=devices,
        spreads=spreads(measured, held, mixture, chips),
        tiles=tiles,
        measured=_measured(measured),
        extensions=extensions(growths(data, weight > 0.0), held.trust) if grows else {},
        gains=gains.gains,
        least=least_figures(data, build),
    )
    return FittedPart(family, part, measured, mixture.answer, aside)


def _place(own: tuple[float, ...], devices: Sequence[Description]) -> int:
    """The first among `devices` that has the columns `own`."""
    columns = np.array([[each[name] for name in COLUMNS] for each in devices], np.float32)
    return int((columns == own).all(axis=1).argmax())


def _work_separately(data: Samples) -> dict[int, int]:
    """Columns, and places from 1 on, of frameworks with rows enough whose layers round nothing
    first where those of others do: what these take, which outnumber them, tells nothing of theirs.
    """
    if ROUNDING not in data.figures:
        return {}
    rounds = data.matrix[:, data.figures.index(ROUNDING)] > 0.0
    columns = {data.figures.index(figure): code for figure, code in IN_FRAMEWORK.items()}
    rows = {column: data.matrix[:, column] > 0.0 for column in columns}
    those = [at for at, own in rows.items() if own.sum() >= _MIN_ROWS and not rounds[own].any()]
    do_round = any(rounds[own].any() for own in rows.values())
    return {column: columns[column] for column in those if do_round}


def _separate(
    data: Samples, own: np.ndarray, framework: int, trees: Any, name: str
) -> SeparateTrees:
    """What a part keeps of `trees` that were fitted to the rows `own` `[n]` (bool)."""
    rows = own & (data.weight > 0.0)
    kinds = data.frame["dtype"][rows].map(same_kernels_dtype)
    return SeparateTrees(
        pack_estimator(trees, name),
        framework,
        frozenset(zip(data.ops[rows].tolist(), kinds.tolist(), strict=True)),
        tuple(place for place, name in enumerate(data.known) if name in set(data.devices[rows])),
    )


def set_aside(data: Samples) -> tuple[str, ...]:
    """`device/op/dtype` of groups twice off what the maker's other devices show: other kernels ran
    there, which the rows do not say. Layers that round their activations and ones that do not say
    nothing of each other; rows that lost their framework do not say which they are."""
    keys = data.frame[["device", "op", "dtype"]]
    named = keys.assign(named=Rows.from_frame(data.frame).in_framework() > 0.0)
    is_sure = named["named"] | ~named.groupby([*keys])["named"].transform("any")
    rounds = data.matrix[:, data.figures.index(ROUNDING)] if ROUNDING in data.figures else 0.0
    kinds = keys.assign(rounds=np.where(is_sure, rounds, np.nan))
    groups = kinds.groupby([*kinds], sort=True).indices
    beside_physics = data.target - data.power_log
    medians = {key: float(np.median(beside_physics[index])) for key, index in groups.items()}
    chips, kept = dict(zip(data.devices, chips_of(data), strict=True)), []
    for device, *kind in medians:
        alike = {
            other: each
            for (other, *its_kind), each in medians.items()
            if its_kind == kind and same_maker(data.seen_as[other], data.seen_as[device])
        }
        off = np.abs(np.array(list(alike.values())) - np.median(list(alike.values()))) > _OUTLIER
        agreed = len({chips[other] for other in alike}) > _MIN_ALIKE and off.mean() < 0.5
        if agreed and off[list(alike).index(device)]:
            kept.append("/".join((device, *kind[:2])))
    return tuple(kept)


def least_figures(data: Samples, build: str) -> dict[tuple[str, str, int], dict[str, float]]:
    """By op, kind of dtype and device's place, the least of each figure in `NOT_BELOW` that was
    measured."""
    names = NOT_BELOW.get(build, ())
    columns = data.matrix[:, [data.figures.index(name) for name in names]]
    kinds = data.frame["dtype"].map(same_kernels_dtype).to_numpy()
    known = np.array([list(data.known).index(name) for name in data.devices])
    among = data.frame.assign(kind=kinds, place=known)[data.weight > 0.0]
    least = columns[data.weight > 0.0]
    return {
        (op, kind, int(place)): dict(zip(names, least[index].min(axis=0).tolist(), strict=True))
        for (op, kind, place), index in among.groupby(["op", "kind", "place"]).indices.items()
    }


def _is_supported(data: Samples, measured: Mapping[tuple[str, str], Places]) -> np.ndarray:
    """`[n]`: whether the row's device has rows enough of its op; few of a device that is treated as
    never seen would only pull at its neighbours."""
    names = list(data.known)
    kinds = [same_kernels_dtype(dtype) for dtype in data.frame["dtype"]]
    rows = zip(data.ops, kinds, data.devices, strict=True)
    supported = {(*key, names[place]) for key, places in measured.items() for place in places}
    return np.array([row in supported for row in rows], bool)


def _measured(data: Samples) -> dict[tuple[str, str], Places]:
    """By op and kind of dtype, the places of devices that have rows enough, alone or with alike.

    Many rows of one op tell of the others too; few do not.
    """
    kinds = np.array([same_kernels_dtype(dtype) for dtype in data.frame["dtype"]], object)
    names = list(data.known)
    alike = np.array([[data.seen_as[a] == data.seen_as[b] for b in names] for a in names])
    places: dict[tuple[str, str], Places] = {}
    for op, kind in sorted(set(zip(data.ops, kinds, strict=True))):
        same = kinds == kind
        rows, of_any = (
            alike @ np.array([(data.devices[among] == name).sum() for name in names])
            for among in (same & (data.ops == op), same)
        )
        enough = (rows >= _MIN_ROWS) | (of_any >= _MANY_ROWS)
        places[op, kind] = tuple(np.flatnonzero(enough).tolist())
    return places
