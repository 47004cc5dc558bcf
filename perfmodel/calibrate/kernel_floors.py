"""What of a measured time is its host's: the floor of short kernels, the offset of long ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.arrays import Floats
from perfmodel.calibrate.kernel_data import LAUNCHED_US
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.gpu.heuristic import TIMINGS, Floor
from perfmodel.cost.learned.corrections import line_of
from perfmodel.cost.learned.features import BY_ROW
from perfmodel.ops.rows import BEHIND_WORK
from perfmodel.ops.spec import OPS, rows_cols

if TYPE_CHECKING:
    import pandas as pd


_SINGLE_CALL = "event_single_call"
_HOST_TIMINGS = (_SINGLE_CALL, "event_loop_eager", "host_wall_sync", "host_loop_mean")
_FLOOR_QUANTILE = 0.03
_USUAL_OFFSET_FRAC = 0.5
"""Of the floor of `event_single_call`, what a long kernel shows beside itself, where no host tells.
Source: six hosts' `_offset_fracs`, 0.49 to 0.84 (tables of sitar-lab/NeuSight@6945927d)."""
_LONG = 2.0
"""Times its floor from which an elementwise call tells what it shows beside its kernel."""
_AT_FLOOR, _AT_FLOOR_FRAC = 1.1, 0.12
"""Short kernels pile up at a floor: so many of the rows take at most a tenth longer."""
_AMONG = (0.05, 0.5, 0.95)
"""Quantiles of the calls at a floor: the ends of 90 % of them, and the floor between."""
_NEAR_FLOOR = 3.0
"""Ops of several launches have floors of up to so many times those that others pile up at."""
_MIN_ROWS = 20
_MIN_HOSTS = 3
_CLEAR_FROM = 1.25
_CLEAR = 8.0
"""Times above its floor from which a row says all that it can of its kernel."""


_START_US = coefficients("gpu.streaming").start_us

FloorKey = tuple[str, str, str, str]
"""Device, timing, op, dtype."""


def fitted_floors(frame: pd.DataFrame) -> dict[FloorKey, Floor]:
    """The floor of every group whose timing contains the host's work, and that was measured down to
    it: short kernels pile up there, or nearly reach what other ops pile up at on that host. The
    shortest of large kernels are no floor: there it is what other hosts let expect of this one."""
    host = frame[frame["timing"].isin(_HOST_TIMINGS)]
    lowest: dict[FloorKey, float] = {}
    shortest: dict[FloorKey, float] = {}
    scatter: dict[FloorKey, tuple[float, float]] = {}
    piled: dict[tuple[str, str], float] = {}
    for key, group in host.groupby(["device", "timing", "op", "dtype"], sort=True):
        if len(group) < _MIN_ROWS:
            continue
        shortest[key] = float(group["duration_us"].min())
        calls_us = group["duration_us"]
        at_floor = calls_us[calls_us <= _AT_FLOOR * calls_us.quantile(_FLOOR_QUANTILE)]
        low, floor, high = at_floor.quantile([*_AMONG])
        lowest[key], scatter[key] = float(floor), (float(low / floor), float(high / floor))
        if len(at_floor) >= _AT_FLOOR_FRAC * len(group):
            piled[key[:2]] = max(floor, piled.get(key[:2], 0.0))
    measured = {
        key: floor
        for key, floor in lowest.items()
        if floor <= _NEAR_FLOOR * piled.get(key[:2], 0.0)
    }
    least = measured | _expected_floors(measured, shortest)
    floors, fracs = _launched_floors(frame), _offset_fracs(host, measured)
    usual_frac = float(np.median([*fracs.values()] or _USUAL_OFFSET_FRAC))
    for key, floor in least.items():
        shown = fracs.get(key[0], usual_frac) * floor
        offset = shown if key[1] == _SINGLE_CALL else TIMINGS[key[1]].offset_us
        offset_us = float(np.clip(offset, 0.0, 0.9 * floor))
        own = scatter[key] if key in measured else (1.0, 1.0)
        floors[key] = Floor(floor, offset_us, is_measured=key in measured, scatter=own)
    return floors


def _offset_fracs(frame: pd.DataFrame, measured: Mapping[FloorKey, float]) -> dict[str, float]:
    """Per device, of the floor of a single call what a long kernel shows beside itself: the launch,
    of which the host's part runs before the kernel starts.

    The median over elementwise ops, whose long calls lie on a line over their elements. A kernel of
    none would still take its start.
    """
    of_host: dict[str, list[float]] = {}
    for key, calls in frame.groupby(["device", "timing", "op", "dtype"], sort=True):
        device, timing, op, _ = key
        is_line = op in OPS and OPS[op].size is rows_cols and op not in BY_ROW
        if key not in measured or timing != _SINGLE_CALL or not is_line:
            continue
        calls = calls[calls["duration_us"] > _LONG * measured[key]]
        if len(calls) >= _MIN_ROWS:
            elements = calls[["rows", "cols"]].astype("float64").prod(axis=1).to_numpy()
            shown_us, _ = line_of(elements, calls["duration_us"].to_numpy(np.float64))
            of_host.setdefault(device, []).append((shown_us - _START_US) / measured[key])
    return {device: float(np.median(fracs)) for device, fracs in of_host.items()}


def _launched_floors(frame: pd.DataFrame) -> dict[FloorKey, Floor]:
    """Behind other work: what the smallest call took on the host of a collector's table."""
    if LAUNCHED_US not in frame:
        return {}
    key = ["device", "timing", "op", "dtype"]
    offset_us = TIMINGS[BEHIND_WORK].offset_us
    launched_us = frame[frame["timing"] == BEHIND_WORK].groupby(key)[LAUNCHED_US].median().dropna()
    return {key: Floor(floor_us, offset_us) for key, floor_us in launched_us.items()}


def _expected_floors(
    known: Mapping[FloorKey, float], shortest: Mapping[FloorKey, float]
) -> dict[FloorKey, float]:
    """Floors of single calls, of the keys of `shortest` that are not `known`: the median of the
    hosts' for the op, times how the host compares with them. A host of which no floor is known is
    taken to be as the others, or as much faster as the shortest call of any op says.

    Source: on six hosts the floors of 15 ops are one figure per host times one per op, within a
    few percent (0.64, 0.99, 1.0, 1.0, 1.2 and 1.7 of the median host; tables of
    sitar-lab/NeuSight@6945927d).
    """
    of_op: dict[tuple[str, str], list[float]] = {}
    for (_, timing, *kind), floor in known.items():
        if timing == _SINGLE_CALL:
            of_op.setdefault((kind[0], kind[1]), []).append(floor)
    usual = {
        kind: float(np.median(floors))
        for kind, floors in of_op.items()
        if len(floors) >= _MIN_HOSTS
    }

    def ratios(device: str, floors: Mapping[FloorKey, float]) -> list[float]:
        return [
            floor / usual[op, dtype]
            for (host, timing, op, dtype), floor in floors.items()
            if host == device and timing == _SINGLE_CALL and (op, dtype) in usual
        ]

    expected = {}
    for device, timing, op, dtype in sorted(shortest.keys() - known.keys()):
        if timing == _SINGLE_CALL and (op, dtype) in usual:
            own = ratios(device, known)
            scale = float(np.median(own)) if own else min(1.0, *ratios(device, shortest))
            expected[device, timing, op, dtype] = scale * usual[op, dtype]
    return expected


def floor_columns(frame: pd.DataFrame, floors: dict[FloorKey, Floor]) -> tuple[Floats, Floats]:
    """(floor_us, offset_us) per row; typical ones where none was fitted."""
    keys = list(zip(frame["device"], frame["timing"], frame["op"], frame["dtype"], strict=True))
    known = {key: floors.get(key, TIMINGS[key[1]]) for key in set(keys)}
    pairs = np.array([(known[key].floor_us, known[key].offset_us) for key in keys], np.float64)
    return pairs[:, 0], pairs[:, 1]


def above_launch_floors(frame: pd.DataFrame, floors: dict[FloorKey, Floor]) -> pd.DataFrame:
    """The rows long enough to tell of their kernel, and not only of the host that launched it."""
    floor_us, _ = floor_columns(frame, floors)
    return frame[frame["duration_us"].to_numpy(np.float64) > _CLEAR_FROM * floor_us]


def support_of(measured_us: Floats, floor_us: Floats) -> Floats:
    """Per row, how much it tells of its kernel: little near its floor, and all far above."""
    support = (measured_us / np.maximum(floor_us, 1e-9) - 1.05) / _CLEAR
    return np.asarray(np.clip(support, 0.01, 1.0))
