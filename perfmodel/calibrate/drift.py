"""Tables in units of the reference work beside them: what changed on the machine is taken out.

Collectors read the reference work (`perfmodel/collect/reference.py`) beside what they measure. Two
tables that hold the same configurations, measured at two times, are a reference of the same kind:
how their ratios depend on what the configurations are made of says how much each part changed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from perfmodel.arrays import Floats
from perfmodel.calibrate.cpu_step import steps_us
from perfmodel.calibrate.tables import MeasuredStep
from perfmodel.collect.records import PARTS
from perfmodel.cost.cpu.drift import UNKNOWN, Z90, Drift, drift_since, drifted, uncalibrated
from perfmodel.errors import UsageError
from perfmodel.files import read_bytes
from perfmodel.hardware import Device

PROBE = 1.01
"""By how much a part is slowed to see what it decides."""
MIN_PAIRS = 8
MAX_RECORD_BYTES = 10_000_000
Z10 = 1.282
"""Standard deviations between the 10th percentile and the median of a normal distribution."""
RIDGE = tuple(10.0**power for power in range(-4, 4))


def level_of(readings: Floats) -> Floats | None:
    """What each part takes over a whole table: the median of its rows; None without readings."""
    known = readings[np.isfinite(readings).all(axis=1)]
    return np.median(known, axis=0) if len(known) else None


def unlike(log_ratios: Floats) -> float:
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
    alike = np.array([step.ranks == 1 and step.threads == device.sm_count for step in steps])
    readings[~alike] = np.nan
    each: list[Drift | None] = [None] * len(steps)
    lines = []
    for table in dict.fromkeys(tables.tolist()):
        index = np.flatnonzero(tables == table)
        drift, name = _drift_of(readings[index], scatters[index], device), Path(table).name
        if drift is not None:
            lines.append(f"{name}: {device.name} {drift} as when it was calibrated")
            for row in np.flatnonzero(alike & (tables == table)).tolist():
                each[row] = drift
        elif level_of(readings[index]) is None:
            lines.append(without_reference([name]))
        else:
            lines.append(_no_level(device))
    whole = _drift_of(readings, scatters, device)
    return StepDrifts(whole, tuple(each), tuple(dict.fromkeys(lines)))


def _no_level(device: Device) -> str:
    if not device.calibration:
        return uncalibrated(device)
    return f"{device.name} was calibrated without reference work: {UNKNOWN}"


def _drift_of(readings: Floats, scatters: Floats, device: Device) -> Drift | None:
    """From `readings` `[steps, parts]` beside steps that scatter by `scatters` `[steps]`."""
    level = level_of(readings)
    drift = None if level is None else drift_since(device, _by_part(level))
    if level is None or drift is None:
        return None
    spreads = unlike(np.log(readings / level)), _between(drift), float(np.median(scatters))
    return replace(drift, spread=math.hypot(*spreads))


def drift_of_repeats(
    before: Sequence[MeasuredStep],
    again: Sequence[MeasuredStep],
    steps: Sequence[MeasuredStep],
    device: Device,
) -> StepDrifts:
    """Of `steps` measured when `again` was, on a `device` calibrated when `before` was."""
    whole = drift_of_pairs(before, again, device)
    count = len(pairs_of(before, again))
    return StepDrifts(
        whole,
        tuple(whole if step.ranks == 1 else None for step in steps),
        (
            f"{device.name} {whole} as when it was calibrated, by {count} configurations that were "
            "measured again",
        ),
    )


def pairs_of(
    before: Sequence[MeasuredStep], again: Sequence[MeasuredStep]
) -> list[tuple[MeasuredStep, MeasuredStep]]:
    """The steps of the same configuration at two times."""
    first = {(step.workload, step.ranks, step.threads): step for step in before}
    keys = [(step.workload, step.ranks, step.threads) for step in again]
    return [(first[key], step) for key, step in zip(keys, again, strict=True) if key in first]


def drift_of_pairs(
    before: Sequence[MeasuredStep], again: Sequence[MeasuredStep], device: Device
) -> Drift:
    """From steps of the same configurations at two times; `UsageError` for too few.

    The logarithms of their ratios are fitted by the shares that the parts have in each, drawn
    towards one ratio for all parts as much as leaving configurations out says; the spread is what
    those left out are off.
    """
    from sklearn.linear_model import RidgeCV

    pairs = pairs_of(before, again)
    if len(pairs) < MIN_PAIRS:
        raise UsageError(
            f"{again[0].where if again else 'the table measured again'}: its table and the one "
            f"before share {len(pairs)} configurations; at least {MIN_PAIRS} tell how far the "
            "machine moved"
        )
    shares = shares_of(partial(steps_us, [step for step, _ in pairs]), device)
    logs = np.log([now.step_us / then.step_us for then, now in pairs])
    fit = RidgeCV(RIDGE, scoring="neg_mean_squared_error").fit(shares, logs)
    return Drift(
        _by_part(np.exp(fit.intercept_ + fit.coef_)), spread=float(np.sqrt(-fit.best_score_))
    )


def _by_part(values: Floats) -> dict[str, float]:
    return dict(zip(PARTS, values.tolist(), strict=True))


def without_reference(names: Sequence[str]) -> str:
    """What is said of tables that hold no reference."""
    listed = ", ".join(names)
    return f"{listed}: holds no reference work: {UNKNOWN}"


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
    drift = drift_since(device, _by_part(longer * low))
    if drift is None:
        raise UsageError(_no_level(device))
    scatter = float(np.mean(np.log(middle / low))) / Z10
    return replace(drift, spread=float(np.hypot(scatter, _between(drift))))


def _between(drift: Drift) -> float:
    """How much the parts differ: the standard deviation of their logarithms."""
    return float(np.std(np.log([*drift.ratios.values()])))
