"""What a fit says of itself: errors on devices left out, beside plain trees and the roofline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.compose import make_column_transformer
from sklearn.model_selection import LeaveOneGroupOut, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OrdinalEncoder

from perfmodel.arrays import Floats
from perfmodel.calibrate.estimators import GENERAL_TREES, KNOWN_TREES, boosted
from perfmodel.calibrate.kernel_data import (
    KernelErrors,
    devices_of,
    errors_of,
    joined,
    mape_pct,
    read_table,
)
from perfmodel.calibrate.kernel_floors import FloorKey
from perfmodel.calibrate.kernel_part import FittedPart
from perfmodel.calibrate.kernel_samples import Samples, samples
from perfmodel.calibrate.kernels import Fitted
from perfmodel.cost.durations import durations_of
from perfmodel.cost.gpu.heuristic import TIMINGS, Floor, measured_us
from perfmodel.cost.learned.devices import COLUMNS
from perfmodel.cost.learned.part import Answer
from perfmodel.hardware import Device
from perfmodel.ops.rows import Rows
from perfmodel.progress import Begin, begun, silent

if TYPE_CHECKING:
    import pandas as pd


_DIMS = ("b", "m", "n", "k", "rows", "cols", "batch", "in_channels", "out_channels", "kernel_size")
_MORE_DIMS = ("input_size", "stride", "s", "heads", "kv_heads", "head_dim")
_KINDS = ("op", "dtype", "framework")
_MIN_US = 1e-3


def plain_trees_us(fitted_to: Samples, asked: Samples, seed: int) -> Floats:
    """Microseconds of the rows of `asked`, by trees fitted to all of `fitted_to`."""
    trees = _trees(KNOWN_TREES, seed).fit(_table(fitted_to), _target(fitted_to))
    return np.asarray(_roofline_us(asked) * np.exp(trees.predict(_table(asked))))


def plain_trees_left_out_us(data: Samples, seed: int) -> Floats:
    """Microseconds of each device's rows, by trees fitted to those of the others."""
    trees = _trees(GENERAL_TREES, seed)
    log_times = cross_val_predict(
        trees, _table(data), _target(data), groups=data.devices, cv=LeaveOneGroupOut()
    )
    return np.asarray(_roofline_us(data) * np.exp(log_times))


def _trees(shape: dict[str, float], seed: int) -> Any:
    columns = make_column_transformer(
        (FunctionTransformer(np.log1p), [*_DIMS, *_MORE_DIMS]),
        (OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1), [*_KINDS]),
        remainder="passthrough",
    )
    names = (*_DIMS, *_MORE_DIMS, *_KINDS, *COLUMNS)
    return make_pipeline(columns, boosted(shape, names, seed=seed))


def _table(data: Samples) -> pd.DataFrame:
    """Dims (0 where an op has none such), kinds (none: empty) and the device's figures."""
    import pandas as pd

    rows = data.frame.reset_index(drop=True)
    dims = rows.reindex(columns=[*_DIMS, *_MORE_DIMS]).astype("float64").fillna(0.0)
    devices = data.with_devices(COLUMNS)[:, -len(COLUMNS) :]
    kinds = rows.reindex(columns=[*_KINDS]).astype(object).fillna("").astype(str)
    return dims.join(kinds).join(pd.DataFrame(devices, columns=[*COLUMNS]))


def _target(data: Samples) -> Floats:
    measured = data.frame["duration_us"].to_numpy(np.float64)
    return np.asarray(np.log(measured / _roofline_us(data)))


def _roofline_us(data: Samples) -> Floats:
    return np.maximum(data.bound_us, _MIN_US)


@dataclass(frozen=True)
class Compared:
    """Errors on rows that the fit has not seen, beside two simpler methods' MAPE."""

    errors: KernelErrors
    roofline_pct: float
    plain_pct: float
    """Boosted trees on log(measured / roofline) from dims and the device's figures."""


def left_out_errors(fitted: Fitted, *, seed: int = 0, begin: Begin = silent) -> list[Compared]:
    """Errors per op, device and dtype; floors are those of the other devices. Of families that one
    device alone was measured on, nothing."""
    compared, done = [], 0
    several = [part for part in fitted.parts if len(set(part.data.devices)) > 1]
    parts = [part for part in several if np.isfinite(part.left_out).any()]
    total = sum(len(part.data.devices) for part in parts)
    for part in parts:
        begin(f"errors of {part.part.name} on devices left out", done, total)
        done += len(part.data.devices)
        beside_us = plain_trees_left_out_us(part.data, seed)
        for device in sorted(set(part.data.devices)):
            compared += _of_device(part, device, fitted.floors, beside_us)
    return compared


def _of_device(
    part: FittedPart,
    device: str,
    floors: dict[FloorKey, Floor],
    beside_us: Floats,
) -> list[Compared]:
    data = part.data
    own = np.flatnonzero((data.devices == device) & np.isfinite(part.left_out))
    frame, factors = data.frame.iloc[own], part.left_out[own]
    answer = Answer(factors, 0.0, 1.0, part.part.share > 0.0)
    floor_us, offset_us = _foreign_floors(frame, device, floors)
    least = np.maximum(data.bound_us[own], data.known[device].kernel_floor_us)

    def shown(logarithm: Floats) -> Floats:
        kernel = data.base_us[own] * np.exp(logarithm) + data.extra_us[own]
        return measured_us(np.maximum(kernel, least), floor_us, offset_us)

    rows, (low, high) = Rows.from_frame(frame), np.zeros((2, len(own)))
    framework = rows.in_framework()
    for op, index in rows.groups():
        work = data.work[own][index]
        low[index], high[index] = part.part.ends(op, work, answer, framework[index])
    predicted = (shown(factors), shown(factors + low), shown(factors + high))
    return _compared(device, frame, predicted, data.bound_us[own], beside_us[own])


def _compared(
    device: str,
    frame: pd.DataFrame,
    predicted: tuple[Floats, Floats, Floats],
    *simpler: Floats,
) -> list[Compared]:
    """Errors per op and dtype of `predicted` (durations, low and high ends), roofline, plain trees;
    all `[n]` in microseconds."""
    measured, compared = frame["duration_us"].to_numpy(np.float64), []
    for (op, dtype), index in frame.groupby(["op", "dtype"], sort=True).indices.items():
        columns = (each[index] for each in (measured, *predicted))
        errors = errors_of((op, device, dtype), *columns)
        compared.append(Compared(errors, *(mape_pct(measured[index], us[index]) for us in simpler)))
    return compared


def _foreign_floors(
    frame: object, device: str, floors: dict[FloorKey, Floor]
) -> tuple[Floats, Floats]:
    """(floor_us, offset_us) per row: medians of the other devices' for the same measurement."""
    keys = list(zip(frame["timing"], frame["op"], frame["dtype"], strict=True))  # type: ignore[index]
    known = {}
    for key in set(keys):
        among = [
            floor
            for (name, *rest), floor in floors.items()
            if name != device and tuple(rest) == key
        ] or [TIMINGS[key[0]]]
        known[key] = (
            float(np.median([each.floor_us for each in among])),
            float(np.median([each.offset_us for each in among])),
        )
    pairs = np.array([known[key] for key in keys], np.float64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def holdout_errors(
    fitted: Fitted, paths: Sequence[Path], *, seed: int = 0, begin: Begin = silent
) -> list[Compared]:
    """Errors per op, device and dtype on the rows of `paths` that a fitted part answers for."""
    frame = joined([read_table(Path(path)) for path in paths])
    known = devices_of(frame["device"])
    compared = []
    for part in begun(fitted.parts, begin, lambda part: f"errors of {part.part.name}"):
        own = frame[frame["op"].isin(set(part.data.frame["op"]))]
        own = own[own["dtype"].isin(part.part.dtypes)]
        if len(own):
            compared += _of_table(fitted, part, own, known, seed)
    return compared


def _of_table(
    fitted: Fitted, part: FittedPart, frame: pd.DataFrame, known: dict[str, Device], seed: int
) -> list[Compared]:
    devices = {name: known[name] for name in sorted(set(frame["device"]))}
    data = samples(frame, part.part.build, devices, fitted.floors, part.part.tiles)
    by_plain_us = plain_trees_us(part.data, data, seed)
    compared = []
    for device in devices:
        own = np.flatnonzero(data.devices == device)
        rows = data.frame.iloc[own]
        answer = durations_of(Rows.from_frame(rows), devices[device], fitted.models)
        predicted = (answer.duration_us, answer.low_us, answer.high_us)
        compared += _compared(device, rows, predicted, data.bound_us[own], by_plain_us[own])
    return compared
