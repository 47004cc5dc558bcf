"""How far a machine has moved since its calibration, by the reference work beside measurements.

Collectors read the reference work (`perfmodel/collect/reference.py`) beside what they measure.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from perfmodel.arrays import Floats
from perfmodel.calibrate.tables import MeasuredStep
from perfmodel.collect.records import PARTS
from perfmodel.cost.cpu.drift import UNKNOWN, Z90, Drift, drift_since, drifted, uncalibrated
from perfmodel.errors import UsageError
from perfmodel.files import read_bytes
from perfmodel.hardware import Device

PROBE = 1.01
"""By how much a part is slowed to see what it decides."""
MAX_RECORD_BYTES = 10_000_000
Z10 = 1.282
"""Standard deviations between the 10th percentile and the median of a normal distribution."""


def level_of(readings: Floats) -> Floats | None:
    """What each part takes over a whole table: the median of its rows; None without readings."""
    known = readings[np.isfinite(readings).all(axis=1)]
    return np.median(known, axis=0) if len(known) else None


def scatter_of(log_ratios: Floats) -> float:
    """How far nine of ten rows were off, all parts of a row together, as a standard deviation."""
    known = log_ratios[np.isfinite(log_ratios).all(axis=1)].mean(axis=1)
    return float(np.quantile(np.abs(known), 0.9)) / Z90 if len(known) else 0.0


def shares_of(times: Callable[[Device], Floats], device: Device) -> Floats:
    """Which share of what `times` answers each part of the reference decides, `[rows, parts]`."""
    usual = times(device)
    slowed = [
        times(drifted(device, Drift(dict.fromkeys(PARTS, 1.0) | {part: PROBE}, 0.0)))
        for part in PARTS
    ]
    shares: Floats = np.log(np.stack(slowed, axis=1) / usual[:, None]) / np.log(PROBE)
    return shares


@dataclass(frozen=True)
class StepDrifts:
    """How far a machine moved between its calibration and steps: over all, and for each of them.

    None where nothing is known of it; `lines` say it to people.
    """

    whole: Drift | None
    each: tuple[Drift | None, ...]
    lines: tuple[str, ...]


def drift_of_steps(steps: Sequence[MeasuredStep], device: Device) -> StepDrifts:
    """From the readings beside `steps`, against those that `device` was calibrated at.

    The rounds of a table go over all of its configurations, so that one drift holds for all of
    them; its spread is how the readings beside single steps scatter, how the parts differ, and how
    far the medians of the steps lie above their 10th percentiles: readings are so short that the
    shortest meet no other program, where a step does. Readings by other threads than the
    calibration's do not compare.
    """
    tables = np.array([step.where.rpartition(": row")[0] for step in steps], object)
    readings = np.array([step.reference_us for step in steps])
    scatters = np.log([max(1.0, step.median_us / step.step_us) for step in steps]) / Z10
    comparable = np.array([step.ranks == 1 and step.threads == device.sm_count for step in steps])
    readings[~comparable] = np.nan

    def of(rows: Floats, scatters: Floats) -> Drift | None:
        level = level_of(rows)
        drift = None if level is None else drift_since(device, by_part(level))
        if level is None or drift is None:
            return None
        spreads = scatter_of(np.log(rows / level)), _between(drift), float(np.median(scatters))
        return replace(drift, spread=math.hypot(*spreads))

    each: list[Drift | None] = [None] * len(steps)
    lines = []
    for table in dict.fromkeys(tables.tolist()):
        own = tables == table
        drift, name = of(readings[own], scatters[own]), Path(table).name
        if drift is not None:
            lines.append(f"{name}: {device.name} {drift} as when it was calibrated")
            for row in np.flatnonzero(comparable & own).tolist():
                each[row] = drift
        elif level_of(readings[own]) is None:
            lines.append(without_reference([name]))
        else:
            lines.append(_no_level(device))
    return StepDrifts(of(readings, scatters), tuple(each), tuple(dict.fromkeys(lines)))


def drift_of_record(path: Path, device: Device) -> Drift:
    """From the reference work in a record of the collector; `UsageError` where there is none.

    The spread is that of the readings, and how the parts differ.
    """
    try:
        record = json.loads(read_bytes(path, max_bytes=MAX_RECORD_BYTES))["reference"]
        longer = float(record["interrupted_ratio"])
        low, middle = (
            np.array([float(record[part][name]) for part in PARTS])
            for name in ("p10_us", "median_us")
        )
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"{path}: is no record of the collector with reference work") from None
    times = np.array([longer, *low, *middle])
    if not (np.isfinite(times).all() and (times > 0).all() and (middle >= low).all()):
        raise UsageError(f"{path}: reference: expected times above 0")
    drift = drift_since(device, by_part(longer * low))
    if drift is None:
        raise UsageError(_no_level(device))
    scatter = float(np.mean(np.log(middle / low))) / Z10
    return replace(drift, spread=math.hypot(scatter, _between(drift)))


def by_part(values: Floats) -> dict[str, float]:
    """`values` by the parts of the reference work."""
    return dict(zip(PARTS, values.tolist(), strict=True))


def without_reference(names: Sequence[str]) -> str:
    """What is said of tables that hold no reference."""
    return f"{', '.join(names)}: holds no reference work: {UNKNOWN}"


def _no_level(device: Device) -> str:
    if not device.calibration:
        return uncalibrated(device)
    return f"{device.name} was calibrated without reference work: {UNKNOWN}"


def _between(drift: Drift) -> float:
    """How much the parts differ: the standard deviation of their logarithms."""
    return float(np.std(np.log([*drift.ratios.values()])))
