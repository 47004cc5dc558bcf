"""Where short calls pile up: the time that their host takes to launch them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from perfmodel.calibrate.kernel_data import LAUNCHED_US
from perfmodel.cost.gpu.heuristic import TIMINGS, calls_of
from perfmodel.ops.rows import BEHIND_WORK

KIND = ["device", "timing", "op", "dtype"]
_FLOOR_QUANTILE, _AT_FLOOR, _AT_FLOOR_FRAC, _MIN_AT_FLOOR = 0.03, 1.1, 0.12, 20


def launch_floors(frame: pd.DataFrame) -> dict[str, float]:
    """Where short calls pile up, by `device/timing/op/dtype`, of timings that contain a launch;
    behind other work, what the smallest call took on the same host."""
    single = frame[frame["timing"].isin([each for each, it in TIMINGS.items() if it.floor_us > 0])]
    calls = single.groupby(KIND)["duration_us"]
    floors = calls.quantile(_FLOOR_QUANTILE)
    at_most = _AT_FLOOR * calls.transform("quantile", _FLOOR_QUANTILE)
    piled = (single["duration_us"] <= at_most).groupby([single[name] for name in KIND]).mean()
    found = floors[(piled >= _AT_FLOOR_FRAC) & (calls.size() >= _MIN_AT_FLOOR)].to_dict()
    if LAUNCHED_US in frame:
        behind = frame[frame["timing"] == BEHIND_WORK].groupby(KIND)[LAUNCHED_US]
        found |= behind.median().dropna().to_dict()
    return {"/".join(key): float(us) for key, us in found.items()}


def host_floors(frame: pd.DataFrame) -> dict[tuple[str, str], float]:
    """By device and timing, the median over ops of where calls of one launch pile up: what tells
    how long a call of an op must be whose own floor nothing shows."""
    found: dict[tuple[str, str], list[float]] = {}
    for key, us in launch_floors(frame).items():
        device, timing, op, _ = key.split("/")
        found.setdefault((device, timing), []).append(us / calls_of(op))
    return {key: float(np.median(each)) for key, each in found.items()}
