"""The fit of one part of a family: boosted trees on log(kernel / physics), floors, intervals.

What a fit is chosen by, and its intervals, come from rows that the trees have not seen: shapes left
out, the largest rows, devices left out. Scikit-learn and XGBoost take seconds to import: only what
fits imports this file, and late.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import joblib
import msgspec
import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.utils.validation import has_fit_parameter
from xgboost import XGBRegressor

from perfmodel.base.arrays import Floats, Ints
from perfmodel.cost.gpu.analysis import calls_of, measured_us
from perfmodel.cost.learned.features import (
    COLUMNS,
    FALLING,
    FEATURES,
    NOT_BELOW,
    PHYSICS,
    describe,
    distance,
    same_maker,
    similarity,
)
from perfmodel.cost.learned.model import (
    ANY_OP,
    BEYOND,
    LONG,
    MAX_LOG,
    OTHERS,
    File,
    Fitted,
    Part,
    kind_of,
    place_of,
)
from perfmodel.cost.learned.store import Forest, Stored, pack
from perfmodel.errors import ModelError
from perfmodel.hardware import Device
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS
from perfmodel.ops.vocabulary.matmul import MATMUL
from perfmodel.validate.calibrate.kernel_data import KIND, few_of_each, host_floors

TREES = {"max_depth": 8, "learning_rate": 0.1, "min_child_weight": 5, "n_estimators": 250}
LEFT_OUT_TREES = TREES | {"n_estimators": 100}
"""Of fits that tell errors only, one for every chip that is left out."""
OWN_TREES = {"max_depth": 7, "learning_rate": 0.12, "min_child_weight": 5, "n_estimators": 150}
"""Of one device, for products alone: fewer and shallower, which keeps files small."""
SHARES = (1.0, 0.75, 0.5, 0.25)
_MIN_OWN_ROWS = 500
"""From so many rows of products a device has trees of its own."""
_MIN_ROWS, _MANY_ROWS = 100, 1000
"""From so many rows of an op, or of all in a dtype, measurements tell of a device."""
_FEW = 400
"""Rows per device, op and dtype in fits and answers of devices left out."""
_HELD_FRAC = 0.2
"""Of the shapes, drawn, and of the rows, the largest: held out for errors."""
_FARTHER = 2.0
"""Residuals beyond the largest row against those of the largest fifth: others are farther still."""
_SMALL_WEIGHT, _FLAG_WEIGHT = 0.1, 0.2
"""Of the smallest row against the largest: what is asked about is larger than what is measured."""
_CLEAR_FROM, _CLEAR_OVER = 1.05, 8.0
"""Times its floor from which, and over which, a row tells ever more of its kernel."""
_TELLS = 1.3
"""Times its floor, and its host's, from which a row counts as measured."""
_MOST_OFF = 2.0
"""Logarithm at which errors stop counting in the choice of the share."""
_MIN_RESIDUALS = 30
"""From so many their 5th and 95th percentiles are an interval."""


def boosted(
    shape: Mapping[str, float], names: Sequence[str], *, seed: int, falling: Collection[str] = ()
) -> XGBRegressor:
    """Boosted trees of `shape` over the columns `names`; the same for the same data and seed.

    The answer never rises with a column of `falling`.
    """
    return XGBRegressor(
        **shape,
        tree_method="hist",
        subsample=0.7,
        colsample_bytree=0.7,
        reg_lambda=3.0,
        monotone_constraints=tuple(-int(name in falling) for name in names),
        random_state=seed,
        n_jobs=1,
        verbosity=0,
    )


class _Trees:
    """A fitted regressor whose answers stay within `low` and `high`."""

    def __init__(self, fitted: Any, low: float, high: float) -> None:
        self.fitted, self.low, self.high = fitted, low, high

    def predict(self, matrix: np.ndarray) -> Floats:
        found = np.asarray(self.fitted.predict(matrix), np.float64)
        return np.asarray(np.clip(found, self.low, self.high))


def fit_part(
    name: str,
    frame: pd.DataFrame,
    known: Mapping[str, Device],
    floors: Mapping[str, float],
    *,
    is_of_ops: bool,
    seed: int,
    regressor: Any = None,
) -> Part:
    """The part `name` of the family of the ops in `frame`, fitted to it: boosted trees, or clones
    of `regressor`; `floors` are `launch_floors` of all parts, `is_of_ops` says whether it answers
    for no other ops. Raises `ModelError` where no row tells of its kernel, or for impossible rows.
    """
    family, ops = OPS[frame["op"].iloc[0]].family, tuple(sorted(set(frame["op"])))
    devices = {each: known[each] for each in sorted(set(frame["device"]))}
    kinds = ["/".join(key) for key in frame.groupby(KIND).groups]
    fitted = Fitted(
        name=name,
        family=family,
        dtypes=tuple(sorted(set(frame["dtype"]))),
        ops=ops if is_of_ops else (),
        features=(),
        devices={each: describe(device) for each, device in devices.items()},
        floors={key: floors[key] for key in kinds if key in floors},
    )
    fit = _Fit(
        Part(fitted, {}, PHYSICS[family]), frame, devices, host_floors(floors), seed, regressor
    )
    part = fit.of_others(_with(fit.part, intervals=fit.measured_intervals()))
    fits = {OTHERS: fit.trees(TREES, np.arange(len(frame)))}
    for device in devices if family == MATMUL and regressor is None else ():
        own = np.flatnonzero(fit.frame["device"] == device)
        if len(own) >= _MIN_OWN_ROWS:
            fits[device] = fit.trees(OWN_TREES, own, len(part.fitted.features))
    files = {each: f"{name}.{at}" for at, each in enumerate(devices)} | {OTHERS: name}
    kept = {each: stored(own.fitted, files[each], own.low, own.high) for each, own in fits.items()}
    return replace(part, trees=kept)


def stored(fitted: Any, name: str, low: float, high: float) -> Stored:
    """A fitted estimator under the `name` of its file: XGBoost's as trees, any other by joblib,
    with the range of its targets."""
    if hasattr(fitted, "get_booster"):
        content = gzip.compress(pack(*of_booster(fitted.get_booster())), 9, mtime=0)
        about = File(f"{name}.trees.gz", hashlib.sha256(content).hexdigest())
        return Stored(content, about, name)
    stream, kind = io.BytesIO(), type(fitted)
    joblib.dump(fitted, stream, compress=3)
    content = stream.getvalue()
    digest, module = hashlib.sha256(content).hexdigest(), f"{kind.__module__}:{kind.__qualname__}"
    return Stored(content, File(f"{name}.joblib", digest, module, low, high), name)


def of_booster(booster: Any) -> tuple[Forest, int]:
    """The trees of XGBoost's `Booster`, and of how many columns they are."""
    learner = json.loads(booster.save_raw("json"))["learner"]
    inner: list[tuple[int, int, int, float]] = []  # tree, place in the heap, feature, threshold
    leaves: list[tuple[int, int, float]] = []
    trees = learner["gradient_booster"]["model"]["trees"]
    for at, tree in enumerate(trees):
        places = [(0, 0)]
        for node, place in places:  # children are appended on the way
            below, number = tree["left_children"][node], tree["split_conditions"][node]
            if below < 0:
                leaves.append((at, place, number))
                continue
            inner.append((at, place, tree["split_indices"][node], number))
            places += [(below, 2 * place + 1), (tree["right_children"][node], 2 * place + 2)]
    last = max((place for _, place, *_ in inner), default=-1)
    nodes = (1 << (last + 1).bit_length()) - 1  # of all levels down to it
    feature = np.zeros((len(trees), nodes), np.int32)
    threshold = np.full(feature.shape, np.inf, np.float32)
    value = np.zeros((len(trees), nodes + 1), np.float32)
    for at, place, column, number in inner:
        feature[at, place], threshold[at, place] = column, number
    for at, place, number in leaves:
        while place < nodes:
            place = 2 * place + 1
        value[at, place - nodes] = number
    parameters = learner["learner_model_param"]
    start = float(str(parameters["base_score"]).strip("[]"))
    return Forest(feature, threshold, value, start), int(parameters["num_feature"])


def _with(part: Part, trees: _Trees | None = None, **changes: Any) -> Part:
    fitted = msgspec.structs.replace(part.fitted, **changes)
    return replace(part, fitted=fitted, trees={OTHERS: trees} if trees else part.trees)


class _Fit:
    """Rows as columns, each `[n]`, and what is fitted to them: `part` with its features and what
    was measured."""

    def __init__(
        self,
        part: Part,
        frame: pd.DataFrame,
        devices: Mapping[str, Device],
        hosts: Mapping[tuple[str, str], float],
        seed: int,
        regressor: Any,
    ) -> None:
        frame = frame.reset_index(drop=True)
        self.frame, self.devices, self.seed, self.regressor = frame, devices, seed, regressor
        self.measured_us = frame["duration_us"].to_numpy(np.float64)
        self.target, self.work, self.tells = np.zeros((3, len(frame)))
        kinds, matrices = frame["dtype"].map(kind_of), np.zeros((len(frame), 0), np.float32)
        least: dict[str, dict[str, float]] = {}
        for device, at in frame.groupby("device").indices.items():
            rows, own = Rows.from_frame(frame.iloc[at]), part.fitted.devices[device]
            columns = FEATURES[part.fitted.family](rows, devices[device])
            part = _with(part, features=tuple(columns.features))
            names = (*part.fitted.features, *COLUMNS)
            if not matrices.size:
                matrices = np.empty((len(frame), len(names)), np.float32)
            matrices[at] = columns.matrix(names, own)
            floor_us, offset_us, hidden_us = np.zeros((3, len(at)))
            kinds_of = rows.grouped(lambda kind: (kind.op, kind.dtype, kind.timing))
            for (op, _, timing), index in kinds_of:
                cell = part.cell(rows.take(index), own)
                floor_us[index], offset_us[index] = cell.floor_us, cell.offset_us
                of_host = hosts.get((device, timing), 0.0) * calls_of(op)
                hidden_us[index] = max(cell.floor_us, of_host)
            us, base_us = self.measured_us[at], columns.base_us
            kernel_us = np.maximum(us - offset_us, 0.5 * np.minimum(us, base_us + columns.extra_us))
            kernel_us = np.maximum(kernel_us - columns.extra_us, 0.3 * kernel_us)
            self.target[at], self.work[at] = np.log(kernel_us / base_us), columns.work
            above = us / np.maximum(floor_us, 1e-9)
            self.tells[at] = np.clip((above - _CLEAR_FROM) / _CLEAR_OVER, 0.01, 1.0)
            of_kind, of_device = kinds.iloc[at].value_counts(), frame.iloc[at]
            for (op, kind), own_at in of_device.groupby(["op", kinds.iloc[at]]).indices.items():
                if len(own_at) < _MIN_ROWS and of_kind[kind] < _MANY_ROWS:
                    continue
                clear = base_us[own_at[us[own_at] > _TELLS * hidden_us[own_at]]]
                shortest = np.quantile(clear, 0.02) if len(clear) else base_us[own_at].max()
                bounds = {"base_us": shortest, "work": columns.work[own_at].max()}
                for name in NOT_BELOW.get(part.fitted.family, ()):
                    bounds[name] = columns.features[name][own_at].min()
                least[f"{device}/{op}/{kind}"] = {key: float(each) for key, each in bounds.items()}
        if not (self.tells > 0.01).any():
            said = "no row takes longer than its launch: no kernel can be told"
            raise ModelError(f"{part.fitted.name}: {said}")
        framework = Rows.from_frame(frame).in_framework()
        groups = frame.assign(work=self.work).groupby([*KIND, framework])["work"]
        size = _SMALL_WEIGHT + (1.0 - _SMALL_WEIGHT) * groups.rank(pct=True).to_numpy() ** 2
        weight = self.tells * size / np.sqrt(groups.transform("size").to_numpy(np.float64))
        weight *= np.where(frame["flag"].to_numpy() != "", _FLAG_WEIGHT, 1.0)
        self.matrix, self.weight = matrices, weight / weight.mean()
        self.part = _with(part, measured=least)

    def trees(self, shape: dict[str, float], among: Ints, width: int | None = None) -> _Trees:
        """A regressor of the rows `among`, by the first `width` columns."""
        own = self.part.fitted
        names, falling = (*own.features, *COLUMNS)[:width], FALLING.get(own.family, ())
        made, low, high = boosted(shape, names, seed=self.seed, falling=falling), -MAX_LOG, MAX_LOG
        target = self.target[among]
        if self.regressor is not None:
            made, low, high = clone(self.regressor), float(target.min()), float(target.max())
        takes_weights = has_fit_parameter(made, "sample_weight")
        weights = {"sample_weight": self.weight[among]} if takes_weights else {}
        return _Trees(made.fit(self.matrix[among, :width], target, **weights), low, high)

    def times(self, part: Part, asked: Ints) -> Iterator[tuple[Ints, Floats, np.ndarray]]:
        """By kind of the rows `asked`: (rows, times as measured, places of intervals)."""
        frame = self.frame.iloc[asked]
        for (name, *_), place in frame.groupby(KIND).indices.items():
            rows, device = Rows.from_frame(frame.iloc[place]), self.devices[name]
            cell = part.cell(rows, part.fitted.devices[name])
            kernel_us, _ = part.kernels(FEATURES[part.fitted.family](rows, device), device, cell)
            us = measured_us(kernel_us, cell.floor_us, cell.offset_us)
            yield asked[place], us, place_of(us, cell.floor_us)

    def measured_intervals(self) -> dict[str, tuple[float, float]]:
        """Of measured devices: from shapes left out, and from the largest rows left out."""
        intervals: dict[str, tuple[float, float]] = {}
        frame, count = self.frame, len(self.frame)
        dims = {name for op in set(frame["op"]) for name in (*OPS[op].dims, *OPS[op].defaults)}
        shapes = frame.groupby(["op", *sorted(dims & set(frame))], dropna=False).ngroup()
        drawn = np.random.default_rng(self.seed).random(shapes.max() + 1)[shapes] < _HELD_FRAC
        ranks = frame.assign(work=self.work).groupby(["device", "op", "dtype"])["work"]
        largest = ranks.rank(pct=True).to_numpy() > 1.0 - _HELD_FRAC
        for held, is_beyond in ((drawn, False), (largest, True)):
            if not held.any() or held.all():
                continue
            without = _with(self.part, self.trees(LEFT_OUT_TREES, np.flatnonzero(~held)))
            off, where = np.full(count, np.nan), np.full(count, BEYOND, object)
            asked = few_of_each(frame, np.flatnonzero(held), _FEW, self.seed)
            for at, us, place in self.times(without, asked):
                off[at] = (_FARTHER if is_beyond else 1.0) * np.log(self.measured_us[at] / us)
                where[at] = BEYOND if is_beyond else place
            _note(intervals, off, where, frame["op"], frame["device"])
        for key, (low, high) in intervals.items():
            if key.endswith(BEYOND):
                usual = intervals.get(key.replace(BEYOND, LONG), (0.0, 0.0))
                intervals[key] = min(low, usual[0]), max(high, usual[1])
        return intervals

    def of_others(self, part: Part) -> Part:
        """`part` with the share of the trees that comes nearest to chips left out, and its
        intervals of others."""
        frame, count, known = self.frame, len(self.frame), part.fitted.devices
        chip_of: dict[str, int] = {}
        for name, own in known.items():  # boards of one chip are left out together
            like = [
                at for each, at in chip_of.items() if similarity(distance(known[each], own)) > 0
            ]
            chip_of[name] = min(like, default=len(chip_of))
        chips = frame["device"].map(chip_of).to_numpy()
        asked = few_of_each(frame, np.arange(count), _FEW, self.seed)
        off = {share: np.full(count, np.nan) for share in SHARES}
        where = np.full(count, LONG, object)
        for chip in sorted(set(chips)):
            train, test = asked[chips[asked] != chip], asked[chips[asked] == chip]
            own = next(known[name] for name, at in chip_of.items() if at == chip)
            kept: dict[str, Any] = {}
            for table in ("measured", "floors"):
                whole = getattr(part.fitted, table).items()
                kept[table] = {key: x for key, x in whole if chip_of[key.split("/")[0]] != chip}
            if any(same_maker(known[key.split("/")[0]], own) for key in kept["measured"]):
                without = _with(part, self.trees(LEFT_OUT_TREES, train), **kept)
                for share in SHARES:
                    for at, us, place in self.times(_with(without, share=share), test):
                        off[share][at], where[at] = np.log(self.measured_us[at] / us), place
        best = min(SHARES, key=lambda share: _error(off[share], self.tells, chips))
        intervals = dict(part.fitted.intervals)
        _note(intervals, off[best], where, frame["op"], pd.Series(chips), is_other=True)
        return _with(part, share=best, intervals=intervals)


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
    columns = {"off": off, "where": where, "op": ops.to_numpy(), "name": names.to_numpy()}
    table = pd.DataFrame(columns)[np.isfinite(off)]
    for every in (table, table.assign(op=ANY_OP)):
        for key, own in every.groupby(["op", "where"] if is_other else ["op", "where", "name"]):
            if len(own) < _MIN_RESIDUALS:
                continue
            order, each = np.argsort(own["off"].to_numpy()), own.groupby("name")["off"]
            share = np.cumsum((1.0 / each.transform("size").to_numpy())[order]) / each.ngroups
            ends = np.interp((0.05, 0.95), share, own["off"].to_numpy()[order])
            wider = 1.0 + 1.0 / each.ngroups if is_other else 1.0
            low, high = np.clip(ends * wider, -3.0, 3.0).tolist()
            name = OTHERS if is_other else key[2]
            intervals[f"{key[0]}/{name}/{key[1]}"] = min(0.0, low), max(0.0, high)
