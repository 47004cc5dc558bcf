"""Fitting one part of a family: two ensembles of trees, their shrinkage and their intervals."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.fit.kernel_data import FloorKey, floor_columns, weights
from perfmodel.hardware import Device
from perfmodel.kernels.gpu.floors import Floor
from perfmodel.kernels.learned.builds import BUILDS
from perfmodel.kernels.learned.columns import Tiles
from perfmodel.kernels.learned.devices import COLUMNS, GENERAL, describe
from perfmodel.kernels.learned.matmul_columns import tile_key
from perfmodel.kernels.learned.part import Part, Spread
from perfmodel.kernels.learned.store import Trees
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import Floats

if TYPE_CHECKING:
    import pandas as pd

OWN = {"max_depth": 7, "eta": 0.06, "min_child_weight": 10, "rounds": 300}
GENERAL_TREES = {"max_depth": 5, "eta": 0.08, "min_child_weight": 20, "rounds": 150}
_SHRINKS = (0.0, 0.25, 0.5, 0.75, 1.0)
_QUANTILES = (0.05, 0.95)
_WIDEST = 3.0
_OUTLIER = np.log(2.0)
_LARGEST_FRAC = 0.2
_TILE_SHARE = 0.02


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
        weight=weights(whole, floor_us),
        base_us=base,
        bound_us=np.concatenate([each.bound_us for each in found]),
        extra_us=extra,
        work=np.concatenate([each.work for each in found]),
        floor_us=floor_us,
        offset_us=offset_us,
    )


def fit_part(
    name: str, build: str, data: Samples, tiles: Tiles, seed: int
) -> tuple[Part, dict[str, Floats]]:
    """The fitted part, and per device left out the log factors that the others predict for it."""
    own_matrix = data.with_devices(COLUMNS)
    general_matrix = data.with_devices(GENERAL)
    general_weight = data.weight * _usual(data)
    left_out, centres = {}, {}
    for device in data.known:
        others = data.devices != device
        if others.all() or not others.any():
            continue
        booster = grown(
            general_matrix[others], data.target[others], general_weight[others], GENERAL_TREES, seed
        )
        left_out[device] = _answers(booster, general_matrix[~others])
        centres[device] = _mean(data.target[others], general_weight[others])
    shrink = _best_shrink(data, left_out, centres)
    predicted = {
        device: centres[device] + shrink * (raw - centres[device])
        for device, raw in left_out.items()
    }
    part = Part(
        name=name,
        build=build,
        dtypes=tuple(sorted(set(data.frame["dtype"]))),
        figures=data.figures,
        own=_stored(grown(own_matrix, data.target, data.weight, OWN, seed), name),
        general=_stored(
            grown(general_matrix, data.target, general_weight, GENERAL_TREES, seed), name
        ),
        centre=_mean(data.target, general_weight),
        shrink=shrink,
        devices=tuple(describe(device) for device in data.known.values()),
        spreads=_spreads(data, own_matrix, predicted, seed),
        tiles=tiles,
    )
    return part, predicted


def grown(
    matrix: np.ndarray, target: Floats, weight: Floats, shape: Mapping[str, float], seed: int
) -> Any:
    """Boosted trees of `shape`; the same for the same data and seed."""
    import xgboost

    settings = {key: value for key, value in shape.items() if key != "rounds"}
    return xgboost.train(
        settings
        | {
            "tree_method": "hist",
            "subsample": 0.7,
            "colsample_bytree": 0.7,
            "reg_lambda": 3.0,
            "seed": seed,
            "nthread": 1,
            "verbosity": 0,
        },
        xgboost.DMatrix(matrix, target, weight=weight),
        int(shape["rounds"]),
    )


def tiles_seen(frame: pd.DataFrame, known: Mapping[str, Device]) -> dict[str, list[list[float]]]:
    """Per op, dtype and generation the tiles that kernels were named after, by their share.

    The names are known after the fact only: they tell which kernels a library has, not which one
    a row will run.
    """
    for column in ("kernel_name", "kernel"):
        if column in frame:
            names = frame[column].astype("string").fillna("")
            break
    else:
        return {}
    tile = {name: _tile_of(str(name)) for name in names.unique()}
    counts: dict[str, dict[tuple[float, float], int]] = {}
    for name, op, dtype, device in zip(
        names, frame["op"], frame["dtype"], frame["device"], strict=True
    ):
        found = tile[name]
        if found is not None:
            group = counts.setdefault(tile_key(op, dtype, known[device]), {})
            group[found] = group.get(found, 0) + 1
    return {
        key: [
            [*found, _reached(found)]
            for found, count in sorted(group.items())
            if count >= _TILE_SHARE * sum(group.values())
        ]
        for key, group in sorted(counts.items())
    }


def _tile_of(name: str) -> tuple[float, float] | None:
    match = re.search(r"MT(\d+)x(\d+)x\d+", name) or re.search(r"gemm\w*?_(\d+)x(\d+)", name)
    return (float(match[2]), float(match[1])) if match else None


def _reached(tile: tuple[float, float]) -> float:
    """Share of the peak that tiles of that area usually reach: small ones load more per product."""
    area = tile[0] * tile[1]
    return float(np.clip(0.6 + 0.1 * np.log2(area / 1024.0), 0.2, 1.0))


def _usual(data: Samples) -> Floats:
    """Per row: 0.1 where a device's op is twice off what the other devices' show, else 1."""
    groups = data.frame.groupby(["device", "op", "dtype"], sort=False).ngroup().to_numpy()
    medians = np.array(
        [np.median(data.target[groups == group]) for group in range(groups.max() + 1)]
    )
    off = np.abs(medians - np.median(medians)) > _OUTLIER
    return np.where(off[groups], 0.1, 1.0)


def _mean(values: Floats, weight: Floats) -> float:
    return float(np.average(values, weights=weight))


def _answers(booster: Any, matrix: np.ndarray) -> Floats:
    return np.asarray(booster.inplace_predict(matrix), np.float64)


def _stored(booster: Any, name: str) -> Trees:
    return Trees(bytes(booster.save_raw(raw_format="ubj")), name)


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
            off = np.abs(data.target[own] - centre - shrink * (raw - centre))
            errors.append(np.average(np.minimum(off, 2.0), weights=data.weight[own]))
        return float(np.median(errors) + np.mean(errors))

    return min(_SHRINKS, key=error)


def _spreads(
    data: Samples, own_matrix: np.ndarray, left_out: Mapping[str, Floats], seed: int
) -> dict[str, Spread]:
    """Quantiles of what was predicted without having been seen, per op and in all."""
    generator = np.random.default_rng(seed)
    drawn = generator.random(len(data.target)) < _LARGEST_FRAC
    seen = _held_out(data, own_matrix, drawn, seed)
    beyond = _held_out(data, own_matrix, _largest(data), seed)
    unseen = np.full(len(data.target), np.nan)
    for device, predicted in left_out.items():
        own = data.devices == device
        unseen[own] = data.target[own] - predicted
    ops = data.frame["op"].to_numpy(object)
    told = data.weight > 0.05 * data.weight.max()
    found = {}
    for op in ["*", *sorted(set(ops))]:
        own = (np.ones(len(ops), bool) if op == "*" else ops == op) & told
        log_work = np.log(np.maximum(data.work[own] if own.any() else data.work, 1.0))
        ends = [_ends(each[own]) for each in (seen, beyond, unseen)]
        found[op] = Spread(
            ends[0],
            _union(ends[0], ends[1]),
            _union(ends[0], ends[2]),
            (float(log_work.min()), float(log_work.max())),
        )
    return found


def _held_out(data: Samples, matrix: np.ndarray, held: np.ndarray, seed: int) -> Floats:
    residual = np.full(len(data.target), np.nan)
    if held.any() and not held.all():
        booster = grown(matrix[~held], data.target[~held], data.weight[~held], OWN, seed)
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
