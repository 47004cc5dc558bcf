"""Fitting one part of a family: two ensembles of trees, their shrinkage and their intervals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.fit.kernel_data import FloorKey, floor_columns, weights
from perfmodel.hardware import Device
from perfmodel.kernels.gpu.floors import Floor
from perfmodel.kernels.learned.builds import BUILDS, FALLING
from perfmodel.kernels.learned.columns import Tiles
from perfmodel.kernels.learned.devices import COLUMNS, GENERAL, describe
from perfmodel.kernels.learned.part import Part, Spread
from perfmodel.kernels.learned.store import packed
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import Floats

if TYPE_CHECKING:
    import pandas as pd

_OWN = {"max_depth": 9, "eta": 0.1, "min_child_weight": 10, "rounds": 250}
_FOREST = _OWN | {"max_depth": 10, "rounds": 100, "num_parallel_tree": 4}
_OWN_OF_PART = {"matmul_fp32": _FOREST, "vector_rows": _FOREST}
"""Several trees per round where single ones answer by chance: at the edge of the domain."""
GENERAL_TREES = {"max_depth": 5, "eta": 0.08, "min_child_weight": 20, "rounds": 150}
Grow = Callable[[np.ndarray, Floats, Floats], Any]
_SMALL_WEIGHT = {"matmul": 0.1}
_SHRINKS = (0.0, 0.25, 0.5, 0.75, 1.0)
_QUANTILES = (0.05, 0.95)
_WIDEST = 3.0
_OUTLIER = np.log(2.0)
_FEWEST_ALIKE = 3
_LARGEST_FRAC = 0.2
_FARTHER = 2.0
"""Intervals outside the domain against those of its largest rows: what comes is farther still."""


@dataclass(frozen=True)
class Samples:
    """Rows of one part as columns, with their targets: log of kernel time over base."""

    frame: pd.DataFrame
    figures: tuple[str, ...]
    matrix: np.ndarray
    devices: np.ndarray
    """`[n]` the driver's names."""
    known: Mapping[str, Device]
    target: Floats
    weight: Floats
    base_us: Floats
    bound_us: Floats
    extra_us: Floats
    work: Floats
    lift: Floats
    floor_us: Floats
    offset_us: Floats

    def with_devices(self, names: Sequence[str]) -> np.ndarray:
        """The figures beside the named figures of each row's device."""
        own = {each: describe(device) for each, device in self.known.items()}
        table = {each: [own[each][name] for name in names] for each in own}
        return np.hstack(
            [self.matrix, np.array([table[each] for each in self.devices], np.float32)]
        )


def samples(
    frame: pd.DataFrame,
    build: str,
    known: Mapping[str, Device],
    floors: dict[FloorKey, Floor],
    tiles: Tiles,
) -> Samples:
    """Columns and targets of `frame`, device by device. Raises `ModelError` on impossible rows."""
    import pandas as pd

    frames, found = [], []
    for name, group in frame.groupby("device", sort=True):
        found.append(BUILDS[build](Rows.from_frame(group), known[name], tiles))
        frames.append(group)
    whole = pd.concat(frames)
    figures = tuple(found[0].figures)
    base = np.concatenate([each.base_us for each in found])
    extra = np.concatenate([each.extra_us for each in found])
    work = np.concatenate([each.work for each in found])
    floor_us, offset_us = floor_columns(whole, floors)
    measured = whole["duration_us"].to_numpy(np.float64)
    kernel = np.maximum(measured - offset_us, 0.5 * np.minimum(measured, base + extra))
    kernel = np.maximum(kernel - extra, 0.3 * kernel)
    return Samples(
        frame=whole,
        figures=figures,
        matrix=np.vstack([each.matrix(figures, {}) for each in found]),
        devices=whole["device"].to_numpy(object),
        known=known,
        target=np.log(kernel / base),
        weight=weights(whole, floor_us, work, _SMALL_WEIGHT.get(build, 1.0)),
        base_us=base,
        bound_us=np.concatenate([each.bound_us for each in found]),
        extra_us=extra,
        work=work,
        lift=np.concatenate([each.lift for each in found]),
        floor_us=floor_us,
        offset_us=offset_us,
    )


def fit_part(
    name: str, build: str, ops: tuple[str, ...], data: Samples, tiles: Tiles, seed: int
) -> tuple[Part, dict[str, Floats], tuple[str, ...]]:
    """The part, per device left out the log factors predicted for it, and groups set aside."""
    own_matrix = data.with_devices(COLUMNS)
    general_matrix = data.with_devices(GENERAL)
    aside = _set_aside(data)
    names = data.frame[["device", "op", "dtype"]].agg("/".join, axis=1)
    weight = np.where(names.isin(aside), 0.0, data.weight)
    lifted = data.target - data.lift
    grow = partial(grown, falling=falling_columns(build, data.figures), seed=seed)
    shape = _OWN_OF_PART.get(name, _OWN)
    left_out, centres = {}, {}
    for device in data.known:
        others = data.devices != device
        if others.all() or not others.any():
            continue
        booster = grow(general_matrix[others], lifted[others], weight[others], GENERAL_TREES)
        left_out[device] = _answers(booster, general_matrix[~others])
        centres[device] = _mean(lifted[others], weight[others])
    shrink = _best_shrink(data, left_out, centres)
    predicted = {
        device: data.lift[data.devices == device]
        + centres[device]
        + shrink * (raw - centres[device])
        for device, raw in left_out.items()
    }
    own = grow(own_matrix, data.target, weight, shape)
    general = grow(general_matrix, lifted, weight, GENERAL_TREES)
    part = Part(
        name=name,
        build=build,
        dtypes=tuple(sorted(set(data.frame["dtype"]))),
        ops=ops,
        figures=data.figures,
        own=packed(own, name),
        general=packed(general, name),
        centre=_mean(lifted, weight),
        shrink=shrink,
        devices=tuple(describe(device) for device in data.known.values()),
        spreads=_spreads(data, weight, own_matrix, predicted, partial(grow, shape=shape), seed),
        tiles=tiles,
    )
    return part, predicted, aside


def grown(
    matrix: np.ndarray,
    target: Floats,
    weight: Floats,
    shape: Mapping[str, float],
    *,
    seed: int,
    falling: frozenset[int] = frozenset(),
) -> Any:
    """Boosted trees of `shape`; the same for the same data and seed.

    The answer never rises with a column of `falling`.
    """
    import xgboost

    settings = {key: value for key, value in shape.items() if key != "rounds"}
    return xgboost.train(
        settings
        | {
            "tree_method": "hist",
            "subsample": 0.7,
            "colsample_bytree": 0.7,
            "reg_lambda": 3.0,
            "monotone_constraints": tuple(
                -int(column in falling) for column in range(matrix.shape[1])
            ),
            "seed": seed,
            "nthread": 1,
            "verbosity": 0,
        },
        xgboost.DMatrix(matrix, target, weight=weight),
        int(shape["rounds"]),
    )


def falling_columns(build: str, figures: Sequence[str]) -> frozenset[int]:
    """Columns in which a build's answers may not rise."""
    names = FALLING.get(build, ())
    return frozenset(column for column, name in enumerate(figures) if name in names)


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


def _mean(values: Floats, weight: Floats) -> float:
    return float(np.average(values, weights=weight))


def _answers(booster: Any, matrix: np.ndarray) -> Floats:
    return np.asarray(booster.inplace_predict(matrix), np.float64)


def _best_shrink(
    data: Samples, left_out: Mapping[str, Floats], centres: Mapping[str, float]
) -> float:
    """The shrinkage under which devices left out are predicted best, each device counted once."""
    if not left_out:
        return 0.5

    def error(shrink: float) -> float:
        errors = []
        for device, raw in left_out.items():
            own = data.devices == device
            centre = centres[device]
            lifted = data.target[own] - data.lift[own]
            off = np.abs(lifted - centre - shrink * (raw - centre))
            errors.append(np.average(np.minimum(off, 2.0), weights=data.weight[own]))
        return float(np.median(errors) + np.mean(errors))

    return min(_SHRINKS, key=error)


def _spreads(
    data: Samples,
    weight: Floats,
    own_matrix: np.ndarray,
    left_out: Mapping[str, Floats],
    grow: Grow,
    seed: int,
) -> dict[str, Spread]:
    """Quantiles of what was predicted without having been seen, per op and in all."""
    generator = np.random.default_rng(seed)
    drawn = generator.random(len(data.target)) < _LARGEST_FRAC
    seen = _held_out(data, weight, own_matrix, drawn, grow)
    beyond = _held_out(data, weight, own_matrix, _largest(data), grow)
    unseen = np.full(len(data.target), np.nan)
    for device, predicted in left_out.items():
        own = data.devices == device
        unseen[own] = data.target[own] - predicted
    ops = data.frame["op"].to_numpy(object)
    told = weight > 0.0
    found = {}
    for op in ["*", *sorted(set(ops))]:
        own = (np.ones(len(ops), bool) if op == "*" else ops == op) & told
        log_work = np.log(np.maximum(data.work[own] if own.any() else data.work, 1.0))
        ends = [_ends(each[own]) for each in (seen, beyond, unseen)]
        found[op] = Spread(
            ends[0],
            _union(ends[0], (_FARTHER * ends[1][0], _FARTHER * ends[1][1])),
            _union(ends[0], ends[2]),
            (float(log_work.min()), float(log_work.max())),
        )
    return found


def _held_out(
    data: Samples, weight: Floats, matrix: np.ndarray, held: np.ndarray, grow: Grow
) -> Floats:
    residual = np.full(len(data.target), np.nan)
    if held.any() and not held.all():
        booster = grow(matrix[~held], data.target[~held], weight[~held])
        residual[held] = data.target[held] - _answers(booster, matrix[held])
    return residual


def _largest(data: Samples) -> np.ndarray:
    held = np.zeros(len(data.target), bool)
    groups = data.frame.groupby(["device", "op", "dtype"], sort=False).ngroup().to_numpy()
    for group in range(groups.max() + 1):
        own = np.flatnonzero(groups == group)
        held[own[data.work[own] > np.quantile(data.work[own], 1.0 - _LARGEST_FRAC)]] = True
    return held


def _ends(residual: Floats) -> tuple[float, float]:
    known = residual[np.isfinite(residual)]
    if len(known) < 20:
        return (-0.5, 0.5)
    low, high = np.quantile(known, _QUANTILES)
    return float(max(low, -_WIDEST)), float(min(high, _WIDEST))


def _union(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    return min(one[0], other[0]), max(one[1], other[1])
