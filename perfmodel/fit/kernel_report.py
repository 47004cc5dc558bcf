"""What a fit says of itself: errors on each device when the others alone were fitted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.fit.kernel_data import FloorKey
from perfmodel.fit.kernel_errors import KernelErrors, errors_of, mape_pct
from perfmodel.fit.kernel_part import FittedPart
from perfmodel.fit.kernel_plain import plain_left_out_us
from perfmodel.fit.kernels import Fitted
from perfmodel.kernels.gpu.floors import TIMINGS, Floor, measured_us
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import Floats


@dataclass(frozen=True)
class Compared:
    """Errors on rows that the fit has not seen, beside two simpler methods' MAPE."""

    errors: KernelErrors
    roofline_pct: float
    plain_pct: float | None
    """Boosted trees on log(measured / roofline) from dims and the device's figures."""


def left_out_errors(fitted: Fitted, *, plain: bool = True, seed: int = 0) -> list[Compared]:
    """Errors per op, device and dtype; floors are those of the other devices."""
    found = []
    for part in fitted.parts:
        if not np.isfinite(part.left_out).all():
            continue
        plain_us = plain_left_out_us(part.data, seed) if plain else None
        for device in sorted(set(part.data.devices)):
            found += _of_device(part, device, fitted.floors, plain_us)
    return found


def _of_device(
    part: FittedPart,
    device: str,
    floors: dict[FloorKey, Floor],
    plain_us: Floats | None,
) -> list[Compared]:
    data = part.data
    own = np.flatnonzero(data.devices == device)
    frame, factors = data.frame.iloc[own], part.left_out[own]
    floor_us, offset_us = _foreign_floors(frame, device, floors)
    least = np.maximum(data.bound_us[own], data.known[device].kernel_floor_us)

    def shown(logarithm: Floats) -> Floats:
        kernel = data.base_us[own] * np.exp(logarithm) + data.extra_us[own]
        return measured_us(np.maximum(kernel, least), floor_us, offset_us)

    measured = frame["duration_us"].to_numpy(np.float64)
    low, high = np.zeros((2, len(own)))
    for op, index in Rows.from_frame(frame).groups():
        low[index], high[index] = part.part.ends(op, data.work[own][index], 0.0)
    predicted, lowest, highest = shown(factors), shown(factors + low), shown(factors + high)
    found = []
    groups = frame.groupby(["op", "dtype"], sort=True).indices
    for (op, dtype), index in groups.items():
        errors = errors_of(
            (op, device, dtype),
            *(each[index] for each in (measured, predicted, lowest, highest)),
        )
        roofline, plain = (
            None if us is None else mape_pct(measured[index], us[own][index])
            for us in (data.bound_us, plain_us)
        )
        found.append(Compared(errors, roofline, plain))
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
