"""What measurements of a device tell beside durations: how fast it streams, which ops ran on it."""

from __future__ import annotations

import numpy as np

from perfmodel.hardware import Device
from perfmodel.kernels.learned.devices import describe, kinship, nearest
from perfmodel.kernels.learned.model import Learned
from perfmodel.kernels.model import KernelModel
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import Floats

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


def measured_share(model: KernelModel, rows: Rows, device: Device) -> Floats:
    """Per row, how much measurements of its op in its dtype tell of `device`, 0 to 1."""
    description = describe(device)
    keys = list(zip(rows.op, rows.dtype, strict=True))
    shares = dict.fromkeys(keys, 0.0)
    for part in model.parts if isinstance(model, Learned) else ():
        for op, dtype in shares:
            if op in part.ops and dtype in part.dtypes:
                known = [part.devices[place] for place in part.known_to(op, dtype)]
                away = nearest(description, known)[1] if known else np.inf
                shares[op, dtype] = max(shares[op, dtype], kinship(away))
    return np.array([shares[key] for key in keys], np.float64)
