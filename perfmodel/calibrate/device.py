"""A CPU device from measurements: parameters of every family, checked on a half held out.

The tables come first as if all had been measured at one speed of the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import Floats
from perfmodel.calibrate.calibrate import Samples, Tables, calibrate
from perfmodel.calibrate.cpu_step import fit_host, parts_of, step_rows, steps_us, with_host
from perfmodel.calibrate.device_data import IN_STEP, RAW, DeviceData, Measured, joined
from perfmodel.calibrate.drift import (
    MIN_PAIRS,
    drift_of_pairs,
    level_of,
    pairs_of,
    ratio_of,
    shares_of,
    unlike,
    without_reference,
)
from perfmodel.calibrate.step_table import MeasuredStep, steps_of
from perfmodel.collect.records import PARTS
from perfmodel.cost.contract import KERNELS
from perfmodel.cost.cpu.call import ALONE, section_of
from perfmodel.cost.cpu.drift import LEVELS, REFERENCE, SPREAD, Drift
from perfmodel.cost.cpu.family import CpuFamily
from perfmodel.errors import UsageError
from perfmodel.hardware import Device
from perfmodel.ops.vocabulary.host import HOST, STEP
from perfmodel.progress import Begin, silent


@dataclass(frozen=True)
class Referenced:
    """Rows and steps at one speed; what the device's file keeps of the reference; remarks."""

    measured: Measured
    steps: list[MeasuredStep]
    reference: Mapping[str, float]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Table:
    """The reference's readings beside each row of a table, and what predicts its rows.

    Rounds over all configurations of steps leave one reading to all rows; kernels, which are
    measured block after block, have each their own.
    """

    run: Path
    readings: Floats
    times: Callable[[Device], Floats]
    in_rounds: bool

    def ratio(self, level: Floats, base: Device) -> Floats:
        """By how much longer each row took than it would have at `level`."""
        usual = level_of(self.readings)
        if usual is None:
            return np.ones(len(self.readings))
        readings = np.tile(usual, (len(self.readings), 1)) if self.in_rounds else self.readings
        return ratio_of(shares_of(self.times, base), np.log(readings / level))


def in_reference_units(data: DeviceData, base: Device) -> Referenced:
    """`data` with what changed on the machine meanwhile taken out, as far as its reference says.

    The level is that of the first table that holds a reference. Without any, tables that hold the
    configurations of the first once more stand in for it, and the file keeps no level.
    """
    lists = [
        steps_of(frame, run.name) for frame, run in zip(data.steps, data.step_runs, strict=True)
    ]
    tables = [
        *(
            _Table(run, it.reference_us, partial(row_times_us, it), IN_STEP in it.kind)
            for run, it in zip(data.measured_runs, data.measured, strict=True)
        ),
        *(
            _Table(run, np.array([it.reference_us for it in steps]), partial(steps_us, steps), True)
            for run, steps in zip(data.step_runs, lists, strict=True)
        ),
    ]
    level = next((it for each in tables if (it := level_of(each.readings)) is not None), None)
    silent = dict.fromkeys(it.run.name for it in tables if level_of(it.readings) is None)
    notes = [without_reference(list(silent))] if silent else []
    kept = {} if level is None else dict(zip(LEVELS, level.tolist(), strict=True))
    if level is None:
        level, again = np.ones(len(PARTS)), _measured_again(data, base)
        tables = [replace(it, readings=_tiled(again.get(it.run), it.readings)) for it in tables]
    logs = {
        it.run: np.log(it.readings / level) for it in tables if level_of(it.readings) is not None
    }
    if not logs:
        return Referenced(data.all, [it for steps in lists for it in steps], {}, tuple(notes))
    spread = max(unlike(each) for each in logs.values())
    first = next(iter(logs)).name
    for run, each in logs.items():
        usual = np.nanmedian(each, axis=0)
        drift = Drift(dict(zip(PARTS, np.exp(usual), strict=True)), unlike(each - usual))
        notes += [f"{run.name}: the machine {drift} as for {first}"] if run.name != first else []
    notes.append(
        f"the reference work moved by {100 * np.expm1(spread):.1f} % while it was calibrated"
    )
    longer = [it.ratio(level, base) for it in tables]
    rows = zip(data.measured, longer, strict=False)
    timed = zip(lists, longer[len(data.measured) :], strict=True)
    return Referenced(
        joined([replace(it, duration_us=it.duration_us / ratio) for it, ratio in rows]),
        [
            replace(step, step_us=step.step_us / by)
            for steps, ratio in timed
            for step, by in zip(steps, ratio.tolist(), strict=True)
        ],
        kept | {SPREAD: float(np.expm1(spread))},
        tuple(notes),
    )


def _measured_again(data: DeviceData, base: Device) -> dict[Path, Floats]:
    """How the parts changed since the first run of steps, of those that hold enough of it again."""
    runs = data.step_runs
    lists = [
        steps_of(frame.assign(p10_us=frame.get(RAW, frame["p10_us"])), run.name)
        for frame, run in zip(data.steps, runs, strict=True)
    ]
    ratios = {
        run: np.array([*drift_of_pairs(lists[0], steps, base).ratios.values()])
        for run, steps in zip(runs[1:], lists[1:], strict=True)
        if len(pairs_of(lists[0], steps)) >= MIN_PAIRS
    }
    return {runs[0]: np.ones(len(PARTS)), **ratios} if ratios else {}


def _tiled(ratios: Floats | None, readings: Floats) -> Floats:
    return readings if ratios is None else np.tile(ratios, (len(readings), 1))


def row_times_us(measured: Measured, device: Device) -> Floats:
    """What the CPU models say of every row; 1 where there is none for its family."""
    times_us = np.ones(len(measured))
    for family, index in measured.families().items():
        model = KERNELS.get(f"cpu/{family}/heuristic")
        if isinstance(model, CpuFamily):
            times_us[index] = model.estimate(measured.rows.take(index), device).duration_us
    return times_us


HELD_OUT_FRAC = 0.5
MIN_GROUPS, MIN_STEPS, MIN_FOR_SPREAD = 4, 8, 10
COVERED_FRAC = 0.9


@dataclass(frozen=True)
class Errors:
    """Held-out errors of one family in one kind of measurement, with the measurement's spread.

    `bias_pct` is that of the summed time; `spread_pct` how far medians lie above the robust times.
    """

    family: str
    kind: str
    n: int
    median_pct: float
    p90_pct: float
    bias_pct: float
    spread_pct: float


@dataclass(frozen=True)
class DeviceFit:
    """A calibrated device, and how well its parameters did on what they had not seen."""

    device: Device
    errors: tuple[Errors, ...]
    steps: Errors | None
    seed: int
    notes: tuple[str, ...] = ()


def fit_device(
    data: DeviceData,
    base: Device,
    *,
    seed: int = 0,
    begin: Begin = silent,
) -> DeviceFit:
    """Fit the CPU `base` to a random half of `data`, for the errors on the other; then to all.

    Halves are of shapes, and of whole configurations for operators in steps. Raises `UsageError`.
    """
    begin("reading the reference work", 0, 0)
    seen = in_reference_units(data, base)
    measured, steps = seen.measured, seen.steps
    held = _held_out(measured, [step.name for step in steps], seed)
    is_held = np.array([group in held for group in measured.group])
    notes = list(seen.notes)
    if not held:
        notes.append("too few shapes to hold any out: no errors are known")
    errors: list[Errors] = []
    step_errors = None
    spreads: Tables = {}
    if held:
        taught = measured.take(np.flatnonzero(~is_held))
        trained = _calibrated(taught, base, "one half", begin)
        half = replace(base, calibration=trained)
        errors, spreads = _errors(measured.take(np.flatnonzero(is_held)), half)
        known = [step for step in steps if step.name not in held]
        other = [step for step in steps if step.name in held]
        if len(known) >= MIN_STEPS and len(other) >= MIN_STEPS:
            half = replace(base, calibration=_with_steps(trained, known, half))
            step_errors, within = _step_errors(other, half)
            spreads[section_of(HOST, STEP)] = {"spread_frac": within}
    tables = _calibrated(measured, base, "all", begin)
    if len(steps) >= MIN_STEPS:
        tables = _with_steps(tables, steps, replace(base, calibration=tables))
    elif steps:
        notes.append(f"{len(steps)} step times are too few to fit the host's work")
    for section, values in spreads.items():
        tables.setdefault(section, {}).update(values)
    if seen.reference:
        tables[REFERENCE] = dict(seen.reference)
    return DeviceFit(
        replace(base, calibration=tables), tuple(errors), step_errors, seed, tuple(notes)
    )


def _held_out(measured: Measured, names: Sequence[str], seed: int) -> set[str]:
    from sklearn.model_selection import GroupShuffleSplit

    groups = np.array([*measured.group, *names])
    if len(set(groups)) < MIN_GROUPS:
        return set()
    halves = GroupShuffleSplit(1, test_size=HELD_OUT_FRAC, random_state=seed)
    return set(groups[next(halves.split(groups, groups=groups))[1]].tolist())


def _calibrated(measured: Measured, base: Device, half: str, begin: Begin) -> Tables:
    tables: Tables = {}
    done, by_model = 0, list(_by_model(measured))
    total = sum(len(index) for _, index in by_model)
    for model, index in by_model:
        kinds = np.array([measured.kind[row] for row in index.tolist()], object)
        for kind in dict.fromkeys(kinds.tolist()):
            part = measured.take(index[kinds == kind])
            begin(f"{half}: {model.family} {kind}, {len(part)} rows", done, total)
            done += len(part)
            tables |= calibrate(model, Samples(part.rows, part.duration_us, part.weight), base)
    if not tables:
        raise UsageError("no row is of a family that has a model of CPUs: nothing to fit")
    return tables


def _by_model(measured: Measured) -> Iterator[tuple[CpuFamily, NDArray[np.int64]]]:
    """The rows by the CPU model that answers for them: families may share one's parameters."""
    families: dict[str, tuple[CpuFamily, list[int]]] = {}
    for family, index in measured.families().items():
        model = KERNELS.get(f"cpu/{family}/heuristic")
        if isinstance(model, CpuFamily):
            families.setdefault(model.family, (model, []))[1].extend(index.tolist())
    for model, rows in families.values():
        yield model, np.array(sorted(rows), np.int64)


def _with_steps(tables: Tables, steps: Sequence[MeasuredStep], device: Device) -> Tables:
    single = [step for step in steps if step.ranks == 1]
    parts = parts_of([step_rows(step) for step in single], device)
    return with_host(tables, fit_host(parts, np.array([step.step_us for step in single])))


def _errors(held: Measured, device: Device) -> tuple[list[Errors], Tables]:
    """Errors by family and kind; per family and section what nine of ten residuals are within."""
    errors: list[Errors] = []
    spreads: Tables = {}
    for model, index in _by_model(held):
        part = held.take(index)
        predicted = model.estimate(part.rows, device).duration_us
        kinds = np.array(part.kind, object)
        for kind in dict.fromkeys(part.kind):
            own = kinds == kind
            times = predicted[own], part.duration_us[own], part.spread_frac[own]
            errors.append(_error(model.family, kind, *times))
            _note_spreads(spreads, model, part.take(np.flatnonzero(own)), predicted[own], device)
    return errors, spreads


def _note_spreads(
    spreads: Tables, model: CpuFamily, part: Measured, predicted: Floats, device: Device
) -> None:
    """Into `spreads`, per family and op, what nine of ten residuals of one kind are within."""
    residual = np.abs(np.log(predicted / part.duration_us))
    for index, call in model.calls(part.rows, device):
        place = ALONE if call.alone else ""
        spreads.setdefault(f"{place}{model.family}", {"spread_frac": _spread(residual)})
        if len(index) >= MIN_FOR_SPREAD:
            spreads[f"{place}{call.section}"] = {"spread_frac": _spread(residual[index])}


def _spread(residual: Floats) -> float:
    return float(np.clip(np.expm1(np.quantile(residual, COVERED_FRAC)), 0.005, 3.0))


def _step_errors(steps: Sequence[MeasuredStep], device: Device) -> tuple[Errors, float]:
    """Errors of whole steps, and what nine of ten of them are within."""
    predicted = steps_us(steps, device)
    measured = np.array([step.step_us for step in steps])
    spread = np.array([step.halves_frac for step in steps])
    within = _spread(np.abs(np.log(predicted / measured)))
    return _error("step", "unwatched", predicted, measured, np.nan_to_num(spread)), within


def _error(
    family: str,
    kind: str,
    predicted: Floats,
    measured: Floats,
    spread: NDArray[np.float64],
) -> Errors:
    off = np.abs(predicted / measured - 1)
    return Errors(
        family=family,
        kind=kind,
        n=len(off),
        median_pct=float(100 * np.median(off)),
        p90_pct=float(100 * np.quantile(off, 0.9)),
        bias_pct=float(100 * (predicted.sum() / measured.sum() - 1)),
        spread_pct=float(100 * np.median(spread)),
    )
