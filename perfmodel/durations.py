"""Durations of pieces: each row to the registered model of its family and kind of device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.errors import ModelError
from perfmodel.hardware import Device
from perfmodel.kernels.model import KERNELS, KernelModel
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS, Floats

if TYPE_CHECKING:
    import pandas as pd

HEURISTIC = "heuristic"
_KIND = {"cuda": "gpu", "rocm": "gpu", "cpu": "cpu"}
Models = Mapping[str, KernelModel]
"""Family to the model that answers for it; families that are not in it have their default."""


@dataclass(frozen=True)
class Durations:
    """Per row: duration, 90 % interval (microseconds), which model said so and on what grounds."""

    duration_us: Floats
    low_us: Floats
    high_us: Floats
    model: tuple[str, ...]
    source: tuple[str, ...]

    def to_frame(self) -> pd.DataFrame:
        """The columns as a pandas frame."""
        import pandas as pd

        return pd.DataFrame(
            {
                "duration_us": self.duration_us,
                "low_us": self.low_us,
                "high_us": self.high_us,
                "model": self.model,
                "source": self.source,
            }
        )


def model_of(family: str, device: Device, models: Models | None = None) -> KernelModel:
    """The model that answers for `family` on `device`; `ModelError` where there is none."""
    if models and family in models:
        return models[family]
    name = f"{_KIND[device.target]}/{family}/{HEURISTIC}"
    if name not in KERNELS:
        raise ModelError(f"no kernel model for the family {family!r} on a {device.target} device")
    return KERNELS[name]


def durations_of(rows: Rows, device: Device, models: Models | None = None) -> Durations:
    """Durations of `rows` on one device, family by family. Raises `ModelError`."""
    duration, low, high = (np.empty(len(rows)) for _ in range(3))
    model, source = np.empty(len(rows), object), np.empty(len(rows), object)
    families = np.array([OPS[op].family for op in rows.op], object)
    for family in dict.fromkeys(families.tolist()):
        index = np.flatnonzero(families == family)
        found = model_of(family, device, models).estimate(rows.take(index), device)
        duration[index], low[index], high[index] = found.duration_us, found.low_us, found.high_us
        model[index], source[index] = found.model, found.source
    return Durations(duration, low, high, tuple(model), tuple(source))


def durations(ops: pd.DataFrame, hardware: Device, *, models: Models | None = None) -> pd.DataFrame:
    """Durations of a frame in the measurement-table schema on one device.

    Returns `duration_us low_us high_us model source` under the index of `ops`: microseconds, a
    90 % interval, the model and what it rests on. Raises `ModelError` for an unknown op or dtype
    and for dims that are missing, zero, negative or not finite.
    """
    found = durations_of(Rows.from_frame(ops), hardware, models).to_frame()
    found.index = ops.index
    return found
