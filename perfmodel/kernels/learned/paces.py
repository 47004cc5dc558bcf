"""What measurements of a device tell beside durations: how fast it streams, which ops ran on it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perfmodel.hardware import Device
from perfmodel.kernels.learned.devices import describe, kinship, nearest
from perfmodel.kernels.learned.model import Learned
from perfmodel.kernels.learned.part import Part
from perfmodel.kernels.model import KernelModel
from perfmodel.ops.rows import Rows

STREAM = "add"
"""The op whose largest rows tell a device's bandwidth."""
_LEAST, _MOST = 0.9, 2.0


def streaming_pace(model: KernelModel, device: Device) -> float:
    """Time of long streams on `device` over that at the usual share of the peak; 1 if not known."""
    description = describe(device)
    for part in model.parts if isinstance(model, Learned) else ():
        extension = part.extensions.get(STREAM)
        if extension is None:
            continue
        near, away = nearest(description, [each.device for each in extension.known])
        weight = kinship(away)
        if weight > 0.0:
            growth = next(each for each in extension.known if each.device == near)
            return float(np.clip(growth.per_base**weight, _LEAST, _MOST))
    return 1.0


def measured_here(model: KernelModel, rows: Rows, device: Device) -> NDArray[np.bool_]:
    """Per row, whether its op was measured in its dtype on `device`, or one like it."""
    known: set[tuple[str, str]] = set()
    if isinstance(model, Learned):
        for part in model.parts:
            if _is_near(part, device):
                known |= {(op, dtype) for op in part.ops for dtype in part.dtypes}
    return np.array([pair in known for pair in zip(rows.op, rows.dtype, strict=True)], bool)


def _is_near(part: Part, device: Device) -> bool:
    return kinship(nearest(describe(device), part.devices)[1]) >= 1.0
