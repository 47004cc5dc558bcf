"""The fit of one part of a family: boosted trees on log(kernel / physics), floors, intervals.

What a fit is chosen by, and its intervals, come from rows that the trees have not seen: shapes left
out, the largest rows, devices left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec
import networkx as nx
import numpy as np
import pandas as pd
from sklearn.base import clone

from perfmodel import hardware
from perfmodel.base.arrays import Floats, Ints, Mask
from perfmodel.cost.contract import KERNELS
from perfmodel.cost.gpu.heuristic import Heuristic, calls_of, measured_us
from perfmodel.cost.learned.devices import COLUMNS, describe, distance, same_maker, similarity
from perfmodel.cost.learned.features import BUILD_OF_FAMILY, BUILDS, FALLING, NOT_BELOW, Columns
from perfmodel.cost.learned.part import (
    ANY_OP,
    BEYOND,
    LONG,
    OTHERS,
    Ensemble,
    Fitted,
    Part,
    kind_of,
    place_of,
)
from perfmodel.cost.learned.store import stored
from perfmodel.errors import ModelError
from perfmodel.hardware import Device
from perfmodel.ops.rows import Kind, Rows
from perfmodel.ops.spec import OPS
from perfmodel.validate.calibrate.estimators import (
    LEFT_OUT_TREES,
    OWN_TREES,
    TREES,
    Bounded,
    boosted,
)
from perfmodel.validate.calibrate.kernel_data import (
    KIND,
    few_of_each,
    host_floors,
    launch_floors,
    observed_tiles,
)

SHARES = (1.0, 0.75, 0.5, 0.25)
OWN_BUILD = "matmul"
"""Products: of which a device with many rows has trees of its own as well."""
_MIN_OWN_ROWS = 500
_MIN_ROWS, _MANY_ROWS = 100, 1000
"""From so many rows of an op, or of all in a dtype, measurements tell of a device."""
_FEW = 400
"""Rows per device, op and dtype in fits and answers of devices left out."""
_HELD_FRAC = 0.2
_FARTHER = 2.0
"""Residuals beyond the largest row against those of the largest fifth: others are farther still."""
_SMALL_WEIGHT, _FLAG_WEIGHT = 0.1, 0.2
"""Of the smallest row against the largest: what is asked about is larger than what is measured."""
_CLEAR_FROM, _CLEAR_OVER = 1.05, 8.0
"""Times its floor from which, and over which, a row tells ever more of its kernel."""
_TELLS = 1.3
"""Times its floor, and its host's, from which a row counts as measured."""
_MOST_OFF = 2.0
"""Logarithm at which errors stop counting in the choice between variants."""
_MIN_RESIDUALS = 30

Trees = Callable[..., Any]
"""From the shape of trees and the rows that they see to a fitted regressor."""


@dataclass(frozen=True)
class FittedPart:
    """A part, and what it said of devices that it had not seen."""

    family: str
    part: Part
    rows: int
    sample: pd.DataFrame
    """Few rows of each device, op and dtype with `bound_us` and `chip`, and `predicted_us low_us
    high_us` by a fit without the chip, NaN where no other of the maker was measured."""


@dataclass(frozen=True)
class _Samples:
    """Rows as columns, each `[n]`."""

    frame: pd.DataFrame
    matrix: np.ndarray
    target: Floats
    weight: Floats
    work: Floats
    tells: Floats

    @property
    def measured_us(self) -> Floats:
        return np.asarray(self.frame["duration_us"].to_numpy(np.float64))


def fit_part(
    family: str,
    name: str,
    frame: pd.DataFrame,
    known: Mapping[str, Device],
    *,
    is_of_ops: bool,
    seed: int,
    regressor: Bounded | None = None,
    hosts: Mapping[tuple[str, str], float] | None = None,
) -> FittedPart:
    """The part `name` of a family fitted to `frame`, of boosted trees or of clones of `regressor`;
    `is_of_ops` says whether it answers for no other ops, `hosts` are `host_floors` of all rows
    (default: of `frame` alone). Raises `ModelError` where no row tells of
    its kernel, or for impossible rows."""
    frame, build = frame.reset_index(drop=True), BUILD_OF_FAMILY[family]
    devices = {each: known[each] for each in sorted(set(frame["device"]))}
    heuristic = KERNELS[f"gpu/{family}/heuristic"]
    assert isinstance(heuristic, Heuristic)
    fitted = Fitted(
        name=name,
        build=build,
        dtypes=tuple(sorted(set(frame["dtype"]))),
        ops=tuple(sorted(set(frame["op"]))) if is_of_ops else (),
        features=(),
        devices={each: describe(device) for each, device in devices.items()},
        floors=launch_floors(frame),
    )
    if build == "matmul":
        tiles = observed_tiles(frame, devices, Part(fitted, {}, heuristic))
        fitted = msgspec.structs.replace(fitted, tiles=tiles)
    hosts = host_floors(frame) if hosts is None else hosts
    part, data = _samples(Part(fitted, {}, heuristic), frame, devices, hosts)

    def trees(shape: Mapping[str, float], among: Mask | Ints, width: int | None = None) -> Any:
        names = (*part.fitted.features, *COLUMNS)[:width]
        made = (
            clone(regressor)
            if regressor
            else boosted(shape, names, seed=seed, falling=FALLING.get(build, ()))
        )
        weight = data.weight[among]
        return made.fit(data.matrix[among, :width], data.target[among], sample_weight=weight)

    intervals = _measured_intervals(part, data, devices, trees, seed)
    part = _with(part, intervals=intervals)
    part, sample = _chosen(part, data, devices, trees, seed)
    names, width = data.frame["device"].to_numpy(), len(part.fitted.features)
    fits = {OTHERS: trees(TREES, np.ones(len(frame), bool))}
    for device in devices if build == OWN_BUILD and regressor is None else ():
        own = names == device
        if own.sum() >= _MIN_OWN_ROWS:
            fits[device] = trees(OWN_TREES, own, width)
    places = {each: f".{at}" for at, each in enumerate(devices)} | {OTHERS: ""}
    kept = {each: stored(fit, f"{name}{places[each]}") for each, fit in fits.items()}
    return FittedPart(family, replace(part, trees=kept), len(frame), sample)


def _with(part: Part, trees: Ensemble | None = None, **changes: Any) -> Part:
    fitted = msgspec.structs.replace(part.fitted, **changes)
    return replace(part, fitted=fitted, trees={OTHERS: trees} if trees else part.trees)


def _of_host(host: Mapping[str, float], kind: Kind) -> float:
    return host.get(kind.timing, 0.0) * calls_of(kind.op)


def _samples(
    part: Part,
    frame: pd.DataFrame,
    devices: Mapping[str, Device],
    hosts: Mapping[tuple[str, str], float],
) -> tuple[Part, _Samples]:
    """`part` with its features and what was measured, and the rows that it is fitted to."""
    columns_of: dict[str, tuple[Ints, Columns]] = {}
    least: dict[str, dict[str, float]] = {}
    measured = frame["duration_us"].to_numpy(np.float64)
    target, work, tells = np.zeros((3, len(frame)))
    names = NOT_BELOW.get(part.fitted.build, ())
    kinds = frame["dtype"].map(kind_of)
    for device, at in frame.groupby("device").indices.items():
        rows = Rows.from_frame(frame.iloc[at])
        columns = BUILDS[part.fitted.build](rows, devices[device], part.fitted.tiles)
        own = part.fitted.devices[device]
        floor_us, offset_us = part.floors(rows, part.cells(rows, own), own)
        us, base_us = measured[at], columns.base_us
        kernel_us = np.maximum(us - offset_us, 0.5 * np.minimum(us, base_us + columns.extra_us))
        kernel_us = np.maximum(kernel_us - columns.extra_us, 0.3 * kernel_us)
        target[at], work[at] = np.log(kernel_us / base_us), columns.work
        above = us / np.maximum(floor_us, 1e-9)
        host = {timing: us for (name, timing), us in hosts.items() if name == device}
        of_host = rows.of_kinds(partial(_of_host, host))
        is_clear = us > _TELLS * np.maximum(floor_us, of_host)
        tells[at] = np.clip((above - _CLEAR_FROM) / _CLEAR_OVER, 0.01, 1.0)
        columns_of[device] = at, columns
        part = _with(part, features=tuple(columns.features))
        of_kind = kinds.iloc[at].value_counts()
        for (op, kind), own_at in frame.iloc[at].groupby(["op", kinds.iloc[at]]).indices.items():
            if len(own_at) < _MIN_ROWS and of_kind[kind] < _MANY_ROWS:
                continue
            clear = own_at[is_clear[own_at]]
            shortest = np.quantile(base_us[clear], 0.02) if len(clear) else base_us[own_at].max()
            least[f"{device}/{op}/{kind}"] = {
                "base_us": float(shortest),
                "work": float(columns.work[own_at].max()),
            } | {name: float(columns.features[name][own_at].min()) for name in names}
    if not (tells > 0.01).any():
        said = "no row takes longer than its launch: no kernel can be told"
        raise ModelError(f"{part.fitted.name}: {said}")
    all_columns = (*part.fitted.features, *COLUMNS)
    matrix = np.empty((len(frame), len(all_columns)), np.float32)
    for device, (at, columns) in columns_of.items():
        matrix[at] = columns.matrix(all_columns, part.fitted.devices[device])
    framework = Rows.from_frame(frame).in_framework()
    groups = frame.assign(work=work).groupby([*KIND, framework])["work"]
    size = _SMALL_WEIGHT + (1.0 - _SMALL_WEIGHT) * groups.rank(pct=True).to_numpy() ** 2
    weight = tells * size / np.sqrt(groups.transform("size").to_numpy(np.float64))
    weight *= np.where(frame["flag"].to_numpy() != "", _FLAG_WEIGHT, 1.0)
    part = _with(part, measured=least)
    return part, _Samples(frame, matrix, target, weight / weight.mean(), work, tells)


class _Fit:
    """A fitted regressor as an `Ensemble`."""

    def __init__(self, fitted: Any) -> None:
        self.fitted = fitted

    def predict(self, matrix: np.ndarray) -> Floats:
        return np.asarray(self.fitted.predict(matrix), np.float64)


def _by_device(
    part: Part, data: _Samples, devices: Mapping[str, Device], asked: Ints
) -> Iterator[tuple[Device, Ints, Rows, Columns]]:
    """(device, its rows among `asked`, in columns)."""
    names = data.frame["device"].to_numpy()[asked]
    for name in sorted(set(names)):
        at, device = asked[names == name], devices[name]
        rows = Rows.from_frame(data.frame.iloc[at])
        yield device, at, rows, BUILDS[part.fitted.build](rows, device, part.fitted.tiles)


def _times(
    part: Part, rows: Rows, device: Device, columns: Columns
) -> tuple[Floats, Floats, Callable[[], Floats]]:
    """(times as measured, floors, logarithms of intervals for whoever needs them)."""
    own = describe(device)
    cells = part.cells(rows, own)
    found = part.kernels(rows, device, cells, columns)
    floor_us, offset_us = part.floors(rows, cells, own)
    us = measured_us(found.us, floor_us, offset_us)
    return us, floor_us, lambda: part.intervals(rows, found, us, floor_us)


def _measured_intervals(
    part: Part, data: _Samples, devices: Mapping[str, Device], trees: Trees, seed: int
) -> dict[str, tuple[float, float]]:
    """Of measured devices: from shapes left out, and from the largest rows left out."""
    intervals: dict[str, tuple[float, float]] = {}
    dims = {name for op in set(data.frame["op"]) for name in (*OPS[op].dims, *OPS[op].defaults)}
    shapes = data.frame.groupby(["op", *sorted(dims & set(data.frame))], dropna=False).ngroup()
    drawn = np.random.default_rng(seed).random(shapes.max() + 1)[shapes] < _HELD_FRAC
    ranks = data.frame.assign(work=data.work).groupby(["device", "op", "dtype"])["work"]
    largest = ranks.rank(pct=True).to_numpy() > 1.0 - _HELD_FRAC
    for held, is_beyond in ((drawn, False), (largest, True)):
        if not held.any() or held.all():
            continue
        without = _with(part, _Fit(trees(LEFT_OUT_TREES, ~held)))
        asked = few_of_each(data.frame, np.flatnonzero(held), _FEW, seed)
        off, where = np.full(len(held), np.nan), np.full(len(held), BEYOND, object)
        for device, at, rows, columns in _by_device(part, data, devices, asked):
            us, floor_us, _ = _times(without, rows, device, columns)
            off[at] = (_FARTHER if is_beyond else 1.0) * np.log(data.measured_us[at] / us)
            if not is_beyond:
                where[at] = place_of(us, floor_us, rows.in_framework())
        _note(intervals, off, where, data.frame["op"], data.frame["device"])
    for key, (low, high) in intervals.items():
        if key.endswith(BEYOND):
            usual = intervals.get(key.replace(BEYOND, LONG), (0.0, 0.0))
            intervals[key] = min(low, usual[0]), max(high, usual[1])
    return intervals


def _chosen(
    part: Part, data: _Samples, devices: Mapping[str, Device], trees: Trees, seed: int
) -> tuple[Part, pd.DataFrame]:
    """`part` with the share of the trees, and whether they are asked about other devices as the
    most similar one, that come nearest to chips left out; its intervals of others; what it said of
    them."""
    count, chips = len(data.frame), _chips_of(data.frame["device"], part.fitted.devices)
    asked = few_of_each(data.frame, np.arange(count), _FEW, seed)
    variants = [(is_near, share) for is_near in (True, False) for share in SHARES]
    off = {each: np.full(count, np.nan) for each in variants}
    floors_us, bounds_us = np.zeros((2, count))
    answers: dict[str, tuple[Part, Ints, Rows, Columns]] = {}
    for chip in sorted(set(chips)):
        train, test = asked[chips[asked] != chip], asked[chips[asked] == chip]
        fit = _Fit(trees(LEFT_OUT_TREES, train) if len(train) else None)
        without = part.without(set(data.frame["device"].iloc[test]), fit)
        makers = [part.fitted.devices[key.split("/")[0]] for key in without.fitted.measured]
        for device, at, rows, columns in _by_device(part, data, devices, test):
            bounds_us[at], own = columns.bound_us, describe(device)
            if any(same_maker(each, own) for each in makers):
                answers[device.name] = without, at, rows, columns
                for is_near, share in variants:
                    tried = _with(without, as_nearest=is_near, share=share)
                    us, floors_us[at], _ = _times(tried, rows, device, columns)
                    off[is_near, share][at] = np.log(data.measured_us[at] / us)
    scores = {each: _error(off[each], data.tells, chips) for each in variants}
    best = min(variants, key=lambda each: scores[each])
    framework = Rows.from_frame(data.frame).in_framework()
    where = place_of(data.measured_us / np.exp(off[best]), floors_us, framework)
    intervals = dict(part.fitted.intervals)
    _note(intervals, off[best], where, data.frame["op"], pd.Series(chips), is_other=True)
    chosen: dict[str, Any] = {"as_nearest": best[0], "share": best[1], "intervals": intervals}
    found = np.full((3, count), np.nan)
    for name, (without, at, rows, columns) in answers.items():
        us, _, ends = _times(_with(without, **chosen), rows, hardware.device(name), columns)
        found[:, at] = us * np.exp([np.zeros(len(us)), *ends()])
    names = ("predicted_us", "low_us", "high_us", "bound_us", "chip")
    columns_of = dict(zip(names, (*found, bounds_us, chips), strict=True))
    return _with(part, **chosen), data.frame.assign(**columns_of).iloc[asked]


def _chips_of(names: pd.Series, devices: Mapping[str, Mapping[str, float]]) -> np.ndarray:
    """`[n]`: similar devices have one number, since they are left out together."""
    graph = nx.Graph()
    graph.add_nodes_from(devices)
    for one, own in devices.items():
        graph.add_edges_from(
            (one, other) for other, each in devices.items() if similarity(distance(own, each)) > 0.0
        )
    chips = {
        name: chip for chip, alike in enumerate(nx.connected_components(graph)) for name in alike
    }
    return np.asarray(names.map(chips).to_numpy())


def _error(off: Floats, tells: Floats, chips: np.ndarray) -> float:
    """Mean and median over chips of the mean absolute logarithm, with what rows tell as weights."""
    size, known = np.minimum(np.abs(off), _MOST_OFF), np.isfinite(off)
    own = [known & (chips == chip) for chip in sorted(set(chips[known]))]
    errors = [np.average(size[each], weights=tells[each]) for each in own]
    return float(np.mean(errors) + np.median(errors)) if errors else 0.0


def _note(
    intervals: dict[str, tuple[float, float]],
    off: Floats,
    where: np.ndarray,
    ops: pd.Series,
    names: pd.Series,
    *,
    is_other: bool = False,
) -> None:
    """Add 5 and 95 % of the residuals `off` `[n]` per op, device and place; of `n` others, each as
    much as the next, wider by 1 + 1 / n."""
    known = np.isfinite(off)
    table = pd.DataFrame(
        {"off": off, "where": where, "op": ops.to_numpy(), "name": names.to_numpy()}
    )[known]
    for every in (table, table.assign(op=ANY_OP)):
        for key, own in every.groupby(["op", "where"] if is_other else ["op", "where", "name"]):
            if len(own) < _MIN_RESIDUALS:
                continue
            order = np.argsort(own["off"].to_numpy())
            counts = own.groupby("name")["off"].transform("size").to_numpy()
            share = np.cumsum((1.0 / counts)[order]) * 1.0 / own["name"].nunique()
            low, high = np.interp((0.05, 0.95), share, own["off"].to_numpy()[order])
            wider = 1.0 + 1.0 / own["name"].nunique() if is_other else 1.0
            name = OTHERS if is_other else key[2]
            low, high = np.clip([low * wider, high * wider], -3.0, 3.0).tolist()
            intervals[f"{key[0]}/{name}/{key[1]}"] = min(0.0, low), max(0.0, high)
