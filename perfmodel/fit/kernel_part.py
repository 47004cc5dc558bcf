"""Fitting one part of a family: two ensembles of trees, their shrinkage and their intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from perfmodel.fit.kernel_blend import fitted_blend
from perfmodel.fit.kernel_gains import fitted_gains
from perfmodel.fit.kernel_growth import BUILDS_THAT_GROW, extensions, growths
from perfmodel.fit.kernel_samples import Samples
from perfmodel.fit.kernel_spreads import held_out, spreads
from perfmodel.fit.kernel_trees import (
    GENERAL_TREES,
    OWN_TREES,
    OWN_TREES_OF_PART,
    answers,
    falling_columns,
    grown,
)
from perfmodel.kernels.learned.columns import Tiles
from perfmodel.kernels.learned.devices import COLUMNS, general_figures
from perfmodel.kernels.learned.part import Part, Places, kind_of
from perfmodel.kernels.learned.store import packed
from perfmodel.ops.spec import Floats

_SHRINKS = (0.0, 0.25, 0.5, 0.75, 1.0)
_OUTLIER = np.log(2.0)
_FEWEST_ALIKE = 3
_FEWEST_ROWS, _MANY_ROWS = 100, 1000


def fit_part(
    name: str, build: str, ops: tuple[str, ...], data: Samples, tiles: Tiles, seed: int
) -> tuple[Part, dict[str, Floats], tuple[str, ...]]:
    """The part, per device left out the log factors predicted for it, and groups set aside."""
    own_matrix = data.with_devices(COLUMNS)
    general_matrix = data.with_devices(general_figures(name))
    aside = _set_aside(data)
    names = data.frame[["device", "op", "dtype"]].agg("/".join, axis=1)
    weight = np.where(names.isin(aside), 0.0, data.weight)
    gains = fitted_gains(data, build, weight, seed)
    measured, data = data, replace(data, target=data.target - gains.own)
    lifted = data.target - data.lift
    grow = partial(grown, falling=falling_columns(build, data.figures), seed=seed)
    shape = OWN_TREES_OF_PART.get(name, OWN_TREES)
    left_out, centres = {}, {}
    for device in data.known:
        others = data.devices != device
        if others.all() or not others.any():
            continue
        booster = grow(general_matrix[others], lifted[others], weight[others], GENERAL_TREES)
        left_out[device] = answers(booster, general_matrix[~others])
        centres[device] = _mean(lifted[others], weight[others])
    shrink = _best_shrink(data, left_out, centres)
    general = {
        device: data.lift[data.devices == device]
        + centres[device]
        + shrink * (raw - centres[device])
        for device, raw in left_out.items()
    }
    blend = fitted_blend(data, weight, general, name, build, seed=seed, asks=shrink > 0.0)
    predicted = {
        device: gains.of_others[data.devices == device] + each
        for device, each in blend.left_out.items()
    }
    grows = build in BUILDS_THAT_GROW
    held = held_out(data, weight, own_matrix, partial(grow, shape=shape), seed=seed, grows=grows)
    own = grow(own_matrix, data.target, weight, shape)
    ensemble = grow(general_matrix, lifted, weight, GENERAL_TREES)
    part = Part(
        name=name,
        build=build,
        dtypes=tuple(sorted(set(data.frame["dtype"]))),
        ops=ops,
        figures=data.figures,
        own=packed(own, name),
        general=packed(ensemble, name),
        centre=_mean(lifted, weight),
        shrink=shrink,
        devices=tuple(data.seen_as[name] for name in data.known),
        spreads=spreads(measured, weight, held, predicted),
        tiles=tiles,
        measured=_measured(measured),
        extensions=extensions(growths(data, weight > 0.0), held.trust) if grows else {},
        gains=gains.gains,
        plain=blend.plain,
    )
    return part, predicted, aside


def _measured(data: Samples) -> dict[tuple[str, str], Places]:
    """By op and kind of dtype, the places of devices that have rows enough, alone or with alike.

    Many rows of one op tell of the others too; few do not.
    """
    kinds = np.array([kind_of(dtype) for dtype in data.frame["dtype"]], object)
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


def _mean(values: Floats, weight: Floats) -> float:
    return float(np.average(values, weights=weight))


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
