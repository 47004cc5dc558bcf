"""Errors of a fit on devices left out and on tables to test on, beside roofline and plain trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.duration import durations_of
from perfmodel.fit.kernel_data import FloorKey, devices_of, joined, read_table
from perfmodel.fit.kernel_errors import KernelErrors, errors_of, mape_pct
from perfmodel.fit.kernel_part import FittedPart
from perfmodel.fit.kernel_plain import plain_left_out_us, plain_us
from perfmodel.fit.kernel_samples import samples
from perfmodel.fit.kernels import Fitted
from perfmodel.hardware import Device
from perfmodel.kernels.gpu.floors import TIMINGS, Floor, measured_us
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import Floats

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Compared:
    """Errors on rows that the fit has not seen, beside two simpler methods' MAPE."""

    errors: KernelErrors
    roofline_pct: float
    plain_pct: float
    """Boosted trees on log(measured / roofline) from dims and the device's figures."""


def left_out_errors(fitted: Fitted, *, seed: int = 0) -> list[Compared]:
    """Errors per op, device and dtype; floors are those of the other devices."""
    found = []
    for part in fitted.parts:
        if not np.isfinite(part.left_out).all():
            continue
        beside_us = plain_left_out_us(part.data, seed)
        for device in sorted(set(part.data.devices)):
            found += _of_device(part, device, fitted.floors, beside_us)
    return found


def _of_device(
    part: FittedPart,
    device: str,
    floors: dict[FloorKey, Floor],
    beside_us: Floats,
) -> list[Compared]:
    data = part.data
    own = np.flatnonzero(data.devices == device)
    frame, factors = data.frame.iloc[own], part.left_out[own]
    floor_us, offset_us = _foreign_floors(frame, device, floors)
    least = np.maximum(data.bound_us[own], data.known[device].kernel_floor_us)

    def shown(logarithm: Floats) -> Floats:
        kernel = data.base_us[own] * np.exp(logarithm) + data.extra_us[own]
        return measured_us(np.maximum(kernel, least), floor_us, offset_us)

    low, high = np.zeros((2, len(own)))
    for op, index in Rows.from_frame(frame).groups():
        low[index], high[index] = part.part.ends(op, data.work[own][index], 0.0)
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
    measured, found = frame["duration_us"].to_numpy(np.float64), []
    for (op, dtype), index in frame.groupby(["op", "dtype"], sort=True).indices.items():
        columns = (each[index] for each in (measured, *predicted))
        errors = errors_of((op, device, dtype), *columns)
        found.append(Compared(errors, *(mape_pct(measured[index], us[index]) for us in simpler)))
    return found


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
    pairs = np.array([known[key] for key in keys], np.float64)
    return pairs[:, 0], pairs[:, 1]


def holdout_errors(fitted: Fitted, paths: Sequence[Path], *, seed: int = 0) -> list[Compared]:
    """Errors per op, device and dtype on the rows of `paths` that a fitted part answers for."""
    frame = joined([read_table(Path(path)) for path in paths])
    known = devices_of(frame["device"])
    found = []
    for part in fitted.parts:
        own = frame[frame["op"].isin(set(part.data.frame["op"]))]
        own = own[own["dtype"].isin(part.part.dtypes)]
        if len(own):
            found += _of_table(fitted, part, own, known, seed)
    return found


def _of_table(
    fitted: Fitted, part: FittedPart, frame: pd.DataFrame, known: dict[str, Device], seed: int
) -> list[Compared]:
    devices = {name: known[name] for name in sorted(set(frame["device"]))}
    data = samples(frame, part.part.build, devices, fitted.floors, part.part.tiles)
    by_plain_us = plain_us(part.data, data, seed)
    found = []
    for device in devices:
        own = np.flatnonzero(data.devices == device)
        rows = data.frame.iloc[own]
        answer = durations_of(Rows.from_frame(rows), devices[device], fitted.models)
        predicted = (answer.duration_us, answer.low_us, answer.high_us)
        found += _compared(device, rows, predicted, data.bound_us[own], by_plain_us[own])
    return found
