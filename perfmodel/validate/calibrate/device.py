"""A CPU device from measurements: parameters of every family, checked on a half held out.

The tables come first as if all had been measured at one speed of the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Floats
from perfmodel.base.progress import Begin, silent
from perfmodel.collect.records import PARTS
from perfmodel.cost.contract import KERNELS
from perfmodel.cost.cpu.call import ALONE, Call, Parameter, section_of, values_of
from perfmodel.cost.cpu.drift import LEVELS, REFERENCE, SPREAD, Drift
from perfmodel.cost.cpu.family import CpuFamily
from perfmodel.errors import UsageError
from perfmodel.hardware import Device
from perfmodel.ops.spec import OPS
from perfmodel.ops.vocabulary.host import HOST, STEP
from perfmodel.validate.calibrate.cpu_step import (
    Tables,
    by_part,
    fit_host,
    level_of,
    parts_of,
    scatter_of,
    shares_of,
    step_rows,
    steps_us,
    with_host,
    without_reference,
)
from perfmodel.validate.calibrate.device_data import DeviceData, Measured, joined
from perfmodel.validate.calibrate.tables import MeasuredStep


def in_reference_units(
    data: DeviceData, base: Device
) -> tuple[Measured, list[MeasuredStep], dict[str, float], list[str]]:
    """Rows and steps as if the machine had been as fast as during the first table with reference
    work; what the device's file keeps of the reference; remarks.

    Each table is divided by how much longer the parts of the reference took beside it, as far as
    they decide each row's time. Tables without a reference stay as they are.
    """
    runs = [run for run, _ in (*data.measured, *data.steps)]
    readings = [it.reference_us for _, it in data.measured]
    readings += [
        np.array([step.reference_us for step in steps]).reshape(-1, len(PARTS))
        for _, steps in data.steps
    ]
    times: list[Callable[[Device], Floats]] = []
    times += [partial(row_times_us, it) for _, it in data.measured]
    times += [partial(steps_us, steps) for _, steps in data.steps]
    levels = [level_of(each) for each in readings]
    unknown = dict.fromkeys(run.name for run, it in zip(runs, levels, strict=True) if it is None)
    notes = [without_reference(list(unknown))] if unknown else []
    known = [(at, level) for at, level in enumerate(levels) if level is not None]
    longer = [np.ones(len(each)) for each in readings]
    reference: dict[str, float] = {}
    if known:
        first, level = known[0]
        for at, now in known:
            longer[at] = np.exp(shares_of(times[at], base) @ np.log(now / level))
            if runs[at] != runs[first]:
                drift = Drift(by_part(now / level), scatter_of(np.log(readings[at] / now)))
                notes.append(f"{runs[at].name}: the machine {drift} as for {runs[first].name}")
        spread = max(scatter_of(np.log(readings[at] / level)) for at, _ in known)
        moved_pct = 100 * np.expm1(spread)
        notes.append(f"the reference work moved by {moved_pct:.1f} % while it was calibrated")
        reference = dict(zip(LEVELS, level.tolist(), strict=True))
        reference[SPREAD] = float(np.expm1(spread))
    tables = [
        replace(it, duration_us=it.duration_us / ratio)
        for (_, it), ratio in zip(data.measured, longer, strict=False)
    ]
    steps = [
        replace(step, step_us=step.step_us / by)
        for (_, each), ratio in zip(data.steps, longer[len(tables) :], strict=True)
        for step, by in zip(each, ratio.tolist(), strict=True)
    ]
    return joined(tables), steps, reference, list(dict.fromkeys(notes))


def row_times_us(measured: Measured, device: Device) -> Floats:
    """What the CPU models say of every row; 1 where there is none for its family."""
    times_us = np.ones(len(measured))
    for family, index in measured.families().items():
        model = KERNELS.get(f"cpu/{family}/heuristic")
        if isinstance(model, CpuFamily):
            times_us[index] = model.estimate(measured.rows.take(index), device).duration_us
    return times_us


SWEEPS = 4
MIN_ROWS_PER_OP = 6
PRIOR = 0.05
"""Pull of the defaults: a parameter off by a factor e counts as much as one row off by 5 %."""
SOFT = 0.15
"""Residuals (of the logarithm) beyond which a row counts less."""


@dataclass(frozen=True)
class _Section:
    """One op's rows, prepared once, and its log durations."""

    call: Call
    log_us: Floats
    root_weight: Floats

    def residuals(self, model: CpuFamily, values: Mapping[str, float]) -> Floats:
        terms = model.breakdown(replace(self.call, values=values))
        return self.root_weight * (np.log(sum(terms.values())) - self.log_us)


def fit_family(model: CpuFamily, measured: Measured, device: Device) -> Tables:
    """The parameters of `model` on `device` that come closest to `measured`: robust least squares
    on relative errors.

    The family's shared parameters and each op's own are improved in turns; ops with few rows
    keep the family's values. All rows are of ops called alone, or none is.
    """
    sections: dict[str, _Section] = {}
    alone = False
    for index, call in model.calls(measured.rows, device):
        alone = call.alone
        sections[call.section] = _Section(
            call, np.log(measured.duration_us[index]), np.sqrt(measured.weight[index])
        )
    fitted = model.fitted
    shared = [each for each in fitted if not each.per_op]
    own = [each for each in fitted if each.per_op]
    tables: Tables = {}
    _improve(model, fitted, sections, tables, model.family, device)
    rich = [name for name, it in sections.items() if len(it.call) >= MIN_ROWS_PER_OP]
    for _ in range(SWEEPS):
        for name in rich:
            _improve(model, own, {name: sections[name]}, tables, name, device)
        _improve(model, shared, sections, tables, model.family, device)
    return {f"{ALONE}{name}" if alone else name: values for name, values in tables.items()}


def _improve(
    model: CpuFamily,
    chosen: Sequence[Parameter],
    sections: Mapping[str, _Section],
    tables: Tables,
    target: str,
    device: Device,
) -> None:
    """Fit `chosen` to `sections`, the others as they are, into the table `target`."""
    from scipy.optimize import least_squares

    device = replace(device, calibration=tables)
    current = {name: values_of(model.family, name, model.parameters, device) for name in sections}
    first = values_of(model.family, target, model.parameters, device)
    low = np.log([each.low for each in chosen])
    high = np.log([each.high for each in chosen])
    start = np.clip(np.log([first[each.name] for each in chosen]), low + 1e-6, high - 1e-6)
    usual = np.log([each.default_on(device) for each in chosen])
    names = [each.name for each in chosen]

    def residuals(logs: Floats) -> Floats:
        changed = dict(zip(names, np.exp(logs).tolist(), strict=True))
        parts = [it.residuals(model, current[name] | changed) for name, it in sections.items()]
        return np.concatenate([*parts, PRIOR * (logs - usual)])

    solution = least_squares(
        residuals, start, bounds=(low, high), loss="soft_l1", f_scale=SOFT, max_nfev=60
    )
    tables.setdefault(target, {})
    tables[target] |= dict(zip(names, np.exp(solution.x).tolist(), strict=True))


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
    measured, steps, reference, notes = in_reference_units(data, base)
    held = _held_out(measured, [step.name for step in steps], seed)
    errors: list[Errors] = []
    step_errors = None
    spreads: Tables = {}
    if held:
        is_held = np.isin(measured.group, list(held))
        trained = _calibrated(measured.take(np.flatnonzero(~is_held)), base, "one half", begin)
        half = replace(base, calibration=trained)
        errors, spreads = _errors(measured.take(np.flatnonzero(is_held)), half)
        known = [step for step in steps if step.name not in held]
        other = [step for step in steps if step.name in held]
        if len(known) >= MIN_STEPS and len(other) >= MIN_STEPS:
            half = replace(base, calibration=_with_steps(trained, known, half))
            predicted = steps_us(other, half)
            true = np.array([step.step_us for step in other])
            halves = np.nan_to_num([step.halves_frac for step in other])
            step_errors = _error("step", "unwatched", predicted, true, halves)
            within = _spread(np.abs(np.log(predicted / true)))
            spreads[section_of(HOST, STEP)] = {"spread_frac": within}
    else:
        notes.append("too few shapes to hold any out: no errors are known")
    tables = _calibrated(measured, base, "all", begin)
    if len(steps) >= MIN_STEPS:
        tables = _with_steps(tables, steps, replace(base, calibration=tables))
    elif steps:
        notes.append(f"{len(steps)} step times are too few to fit the host's work")
    for section, values in spreads.items():
        tables.setdefault(section, {}).update(values)
    if reference:
        tables[REFERENCE] = reference
    fitted = replace(base, calibration=tables)
    return DeviceFit(fitted, tuple(errors), step_errors, seed, tuple(notes))


def _held_out(measured: Measured, names: Sequence[str], seed: int) -> set[str]:
    from sklearn.model_selection import GroupShuffleSplit

    groups = np.array([*measured.group.tolist(), *names])
    if len(set(groups)) < MIN_GROUPS:
        return set()
    halves = GroupShuffleSplit(1, test_size=HELD_OUT_FRAC, random_state=seed)
    return set(groups[next(halves.split(groups, groups=groups))[1]].tolist())


def _calibrated(measured: Measured, base: Device, half: str, begin: Begin) -> Tables:
    tables: Tables = {}
    done, parts = 0, list(_parts(measured))
    total = sum(len(part) for _, _, part in parts)
    for model, kind, part in parts:
        begin(f"{half}: {model.family} {kind}, {len(part)} rows", done, total)
        done += len(part)
        tables |= fit_family(model, part, base)
    if not tables:
        raise UsageError("no row is of a family that has a model of CPUs: nothing to fit")
    return tables


def _parts(measured: Measured) -> Iterator[tuple[CpuFamily, str, Measured]]:
    """The rows by the CPU model that answers for them, whose parameters families may share, and by
    how they were measured."""
    rows: dict[tuple[str, str], list[int]] = {}
    models: dict[str, CpuFamily] = {}
    for row, (op, kind) in enumerate(zip(measured.rows.op, measured.kind, strict=True)):
        model = KERNELS.get(f"cpu/{OPS[op].family}/heuristic")
        if isinstance(model, CpuFamily):
            models.setdefault(model.family, model)
            rows.setdefault((model.family, kind), []).append(row)
    for (family, kind), own in rows.items():
        yield models[family], kind, measured.take(np.array(own, np.int64))


def _with_steps(tables: Tables, steps: Sequence[MeasuredStep], device: Device) -> Tables:
    single = [step for step in steps if step.ranks == 1]
    parts = parts_of([step_rows(step) for step in single], device)
    return with_host(tables, fit_host(parts, np.array([step.step_us for step in single])))


def _errors(held: Measured, device: Device) -> tuple[list[Errors], Tables]:
    """Errors by family and kind; per family and section what nine of ten residuals are within."""
    errors: list[Errors] = []
    spreads: Tables = {}
    for model, kind, part in _parts(held):
        predicted = model.estimate(part.rows, device).duration_us
        errors.append(_error(model.family, kind, predicted, part.duration_us, part.spread_frac))
        residual = np.abs(np.log(predicted / part.duration_us))
        for index, call in model.calls(part.rows, device):
            place = ALONE if call.alone else ""
            spreads.setdefault(f"{place}{model.family}", {"spread_frac": _spread(residual)})
            if len(index) >= MIN_FOR_SPREAD:
                spreads[f"{place}{call.section}"] = {"spread_frac": _spread(residual[index])}
    return errors, spreads


def _spread(residual: Floats) -> float:
    return float(np.clip(np.expm1(np.quantile(residual, COVERED_FRAC)), 0.005, 3.0))


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
