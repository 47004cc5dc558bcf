"""Errors of a fit on tables that it was not fitted on, beside roofline and plain trees."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.duration import durations_of
from perfmodel.fit.kernel_data import devices_of, joined, read_table
from perfmodel.fit.kernel_errors import errors_of, mape_pct
from perfmodel.fit.kernel_part import FittedPart
from perfmodel.fit.kernel_plain import plain_us
from perfmodel.fit.kernel_report import Compared
from perfmodel.fit.kernel_samples import samples
from perfmodel.fit.kernels import Fitted
from perfmodel.hardware import Device
from perfmodel.ops.rows import Rows

if TYPE_CHECKING:
    import pandas as pd


def holdout_errors(fitted: Fitted, paths: Sequence[Path], *, seed: int = 0) -> list[Compared]:
    """Errors per op, device and dtype on the rows of `paths` that a fitted part answers for."""
    frame = joined([read_table(Path(path)) for path in paths])
    known = devices_of(frame["device"])
    found = []
    for part in fitted.parts:
        own = frame[frame["op"].isin(set(part.data.frame["op"]))]
        own = own[own["dtype"].isin(part.part.dtypes)]
        if len(own):
            found += _of_part(fitted, part, own, known, seed)
    return found


def _of_part(
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
        measured = rows["duration_us"].to_numpy(np.float64)
        for (op, dtype), index in rows.groupby(["op", "dtype"], sort=True).indices.items():
            columns = (measured, answer.duration_us, answer.low_us, answer.high_us)
            errors = errors_of((op, device, dtype), *(each[index] for each in columns))
            roofline, plain = (
                mape_pct(measured[index], each[own][index]) for each in (data.bound_us, by_plain_us)
            )
            found.append(Compared(errors, roofline, plain))
    return found
