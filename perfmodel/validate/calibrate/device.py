"""The file of a CPU from measurements: parameters of every family, checked on a half held out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import least_squares
from sklearn.model_selection import GroupShuffleSplit

from perfmodel.base.arrays import Floats
from perfmodel.base.progress import Begin, silent
from perfmodel.cost.contract import KERNELS
from perfmodel.cost.cpu.family import WATCHED, Call, CpuFamily
from perfmodel.cost.cpu.parameters import ALONE, Parameter, section_of, values_of
from perfmodel.errors import UsageError
from perfmodel.hardware import Device
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS
from perfmodel.ops.vocabulary.movement import CALL, HOST, NODE, STEP, UPDATE, VIEWS
from perfmodel.validate.calibrate.device_data import (
    DeviceData,
    Measured,
    Source,
    base_device,
    read_tables,
)
from perfmodel.validate.calibrate.tables import MeasuredStep, predict_step, step_rows
from perfmodel.validate.evaluate.results import error_figures

Tables = dict[str, dict[str, float]]
"""Section of a calibration (a family, or an op of it) to name to value."""
Sections = dict[str, tuple[Call, Floats, Floats]]
"""One op's rows, prepared once, their log durations and the roots of their weights."""
SWEEPS = 4
MIN_ROWS_PER_OP = 6
"""Rounds of improving parameters of single ops and shared ones; rows from which an op has own."""
PRIOR = 0.05
"""Pull of the defaults: a parameter off by a factor e counts as much as one row off by 5 %."""
SOFT = 0.15
"""Residuals (of the logarithm) beyond which a row counts less."""


def fit_family(model: CpuFamily, measured: Measured, device: Device) -> Tables:
    """The parameters of `model` on `device` that come closest to `measured`: robust least squares
    on relative errors.

    The family's shared parameters and each op's own are improved in turns; ops with few rows
    keep the family's values. All rows are of ops called alone, or none is.
    """
    sections: Sections = {}
    alone = False
    for index, call in model.calls(measured.rows, device):
        alone = call.alone
        log_us, root_weight = np.log(measured.duration_us[index]), np.sqrt(measured.weight[index])
        sections[call.section] = call, log_us, root_weight
    shared = [each for each in model.fitted if not each.per_op]
    own = [each for each in model.fitted if each.per_op]
    tables: Tables = {}
    _improve(model, model.fitted, sections, tables, model.family, device)
    rich = [name for name, (call, *_) in sections.items() if len(call) >= MIN_ROWS_PER_OP]
    for _ in range(SWEEPS):
        for name in rich:
            _improve(model, own, {name: sections[name]}, tables, name, device)
        _improve(model, shared, sections, tables, model.family, device)
    return {f"{ALONE}{name}" if alone else name: values for name, values in tables.items()}


def _improve(
    model: CpuFamily,
    chosen: Sequence[Parameter],
    sections: Sections,
    tables: Tables,
    target: str,
    device: Device,
) -> None:
    """Fit `chosen` to `sections`, the others as they are, into the table `target`."""
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
        parts = []
        for name, (call, log_us, root_weight) in sections.items():
            terms = model.breakdown(replace(call, values=current[name] | changed))
            parts.append(root_weight * (np.log(sum(terms.values())) - log_us))
        return np.concatenate([*parts, PRIOR * (logs - usual)])

    solution = least_squares(
        residuals, start, bounds=(low, high), loss="soft_l1", f_scale=SOFT, max_nfev=60
    )
    tables.setdefault(target, {})
    tables[target] |= dict(zip(names, np.exp(solution.x).tolist(), strict=True))


OVERHEAD = "overhead"
COUNTED = (CALL, NODE, UPDATE, STEP)
SOFT_STEP = 0.05
"""Residuals (of the logarithm) beyond which a step counts less."""
PRIOR_RATIO, PRIOR_EACH = 1.0, 0.1
"""Pull towards 1 of a ratio, and towards the usual value of a host cost, per factor of e."""
USUAL_US = {CALL: 1.0, NODE: 2.0, UPDATE: 3.0, STEP: 60.0}


def fit_steps(tables: Tables, steps: Sequence[MeasuredStep], base: Device) -> Tables:
    """`tables` with a factor for each part of whole steps of one rank: microseconds each of host
    work, a ratio of everything else where operators are not timed one by one."""
    steps, device = [step for step in steps if step.ranks == 1], replace(base, calibration=tables)
    parts = pd.DataFrame([_parts_of(step_rows(step), device) for step in steps])
    parts = parts.fillna(0.0).sort_index(axis=1)
    values, step_us = parts.to_numpy(np.float64), np.array([step.step_us for step in steps])
    usual = np.log([USUAL_US.get(name, 1.0) for name in parts])
    is_host = np.isin(list(parts), (*COUNTED, OVERHEAD))
    pull = np.where(is_host, PRIOR_EACH, PRIOR_RATIO)
    limit = np.where(is_host, 4.0, np.log(3.0)) + 1e-9

    def residuals(logs: Floats) -> Floats:
        off = np.log(values @ np.exp(logs) / step_us)
        return np.concatenate([off, pull * (logs - usual)])

    bounds = (usual - limit, usual + limit)
    solution = least_squares(residuals, usual, bounds=bounds, loss="soft_l1", f_scale=SOFT_STEP)
    scaled = {section: dict(values) for section, values in tables.items()}
    for name, factor in zip(parts, np.exp(solution.x).tolist(), strict=True):
        ratio = min(max(factor, 0.3), 3.0)
        if name in COUNTED:
            scaled.setdefault(section_of(HOST, name), {})["each_us"] = factor
        elif name == OVERHEAD:
            for family in sorted({OPS[op].family for op in OPS} & set(scaled)):
                scaled[family]["overhead_ratio"] = min(max(factor, 0.05), 3.0)
            for view in VIEWS:
                scaled.setdefault(section_of(HOST, view), {})["work_ratio"] = ratio
        else:
            scaled.setdefault(name, {})["work_ratio"] = ratio
    return scaled


def _parts_of(rows: Rows, device: Device) -> dict[str, float]:
    """What a step is made of: overhead of operators and their work by section, predicted
    microseconds; counts of host work."""
    parts: dict[str, float] = {}
    watched = replace(rows, timing=(WATCHED,) * len(rows))
    families = np.array([OPS[op].family for op in rows.op], object)
    for family in dict.fromkeys(families.tolist()):
        model = KERNELS[f"cpu/{family}/heuristic"]
        assert isinstance(model, CpuFamily)
        for _, call in model.calls(watched.take(np.flatnonzero(families == family)), device):
            if call.op in COUNTED:
                counted = float((call.dims["count"] * call.crowding()).sum())
                parts[call.op] = parts.get(call.op, 0.0) + counted
                continue
            # Embedding ops differ in what surrounds them; other families go as a whole.
            work = call.section if model.family == "embedding" else model.family
            for name, term in model.breakdown(call).items():
                part = OVERHEAD if name == OVERHEAD or family == HOST else work
                parts[part] = parts.get(part, 0.0) + float(term.sum())
    return parts


HELD_OUT_FRAC = 0.5
MIN_GROUPS, MIN_STEPS, MIN_FOR_SPREAD = 4, 8, 10
COVERED_FRAC = 0.9
"""Of residuals, within the spread that is told: the ends of an interval of 90 %."""


@dataclass(frozen=True)
class DeviceFit:
    """A calibrated device, and how well its parameters did on what they had not seen: `errors` by
    `family` and `kind` of measurement, whole steps last.

    `bias_pct` is that of the summed time; `spread_pct` how far medians lie above the robust times.
    """

    device: Device
    errors: list[dict[str, Any]]
    seed: int
    notes: list[str]


def fit_any_device(
    paths: Sequence[Path],
    hardware: str | None = None,
    *,
    stem: str,
    seed: int = 0,
    begin: Begin = silent,
) -> tuple[DeviceFit, str]:
    """The fit of the CPU that the tables at `paths` are of, and the text of its file.

    `hardware` names what to start from; `stem` is the device's new name. Raises `UsageError`.
    """
    data = read_tables(paths)
    base = base_device(data.device, paths, hardware, stem)
    if base.target != "cpu":
        raise UsageError(
            f"{paths[0]}: measured on {base.name}, a GPU: `perfmodel fit kernels` fits its kernels"
        )
    fit = fit_device(data, base, seed=seed, begin=begin)
    return fit, _device_toml(fit, data.sources)


def fit_device(
    data: DeviceData, base: Device, *, seed: int = 0, begin: Begin = silent
) -> DeviceFit:
    """Fit the CPU `base` to a random half of `data`, for the errors on the other; then to all.

    Halves are of shapes, and of whole configurations for operators in steps. Raises `UsageError`.
    """
    measured, steps, notes = data.all, data.steps, []
    errors: list[dict[str, Any]] = []
    spreads: Tables = {}
    groups = np.array([*measured.group.tolist(), *(step.name for step in steps)])
    if len(set(groups)) >= MIN_GROUPS:
        halves = GroupShuffleSplit(1, test_size=HELD_OUT_FRAC, random_state=seed)
        held = set(groups[next(halves.split(groups, groups=groups))[1]].tolist())
        is_held = np.isin(measured.group, list(held))
        trained = _calibrated(measured.take(np.flatnonzero(~is_held)), base, "one half", begin)
        half = replace(base, calibration=trained)
        errors, spreads = _errors(measured.take(np.flatnonzero(is_held)), half)
        known = [step for step in steps if step.name not in held]
        other = [step for step in steps if step.name in held]
        if len(known) >= MIN_STEPS and len(other) >= MIN_STEPS:
            half = replace(base, calibration=fit_steps(trained, known, base))
            predicted = np.array([predict_step(step, half)[0] for step in other])
            true = np.array([step.step_us for step in other])
            own = np.nan_to_num([step.halves_frac for step in other])
            errors.append(_error("step", "unwatched", predicted, true, own))
            within = _spread(np.abs(np.log(predicted / true)))
            spreads[section_of(HOST, STEP)] = {"spread_frac": within}
    else:
        notes.append("too few shapes to hold any out: no errors are known")
    tables = _calibrated(measured, base, "all", begin)
    if len(steps) >= MIN_STEPS:
        tables = fit_steps(tables, steps, base)
    elif steps:
        notes.append(f"{len(steps)} step times are too few to fit the host's work")
    for section, values in spreads.items():
        tables.setdefault(section, {}).update(values)
    fitted = replace(base, calibration=tables)
    return DeviceFit(fitted, errors, seed, notes)


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


def _errors(held: Measured, device: Device) -> tuple[list[dict[str, Any]], Tables]:
    """Errors by family and kind; per family and section what nine of ten residuals are within."""
    errors: list[dict[str, Any]] = []
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
    family: str, kind: str, predicted: Floats, measured: Floats, spread: Floats
) -> dict[str, Any]:
    figures = error_figures(predicted, measured)
    about = {"family": family, "kind": kind, "n": len(measured)}
    quantiles = {name: figures[name] for name in ("median_pct", "p90_pct")}
    spread_pct = float(100 * np.median(spread))
    return about | quantiles | {"bias_pct": figures["total_pct"], "spread_pct": spread_pct}


PLACES = 5
"""Significant digits of a fitted number."""


def _device_toml(fit: DeviceFit, sources: Sequence[Source]) -> str:
    """The file: what it was fitted on as comments, then the device with its calibration."""
    made = f"{datetime.now(UTC):%Y-%m-%d}, perfmodel {version('perfmodel')}"
    lines = [f"# Fitted with `perfmodel fit device`: {made}, scipy {version('scipy')}."]
    for it in sources:
        lines.append(f"# {it.name}: sha256 {it.sha256}, {it.rows} rows, {it.left_out} left out")
    if fit.errors:
        lines += [
            f"# A random half held out (seed {fit.seed}) for the errors, then fitted to all.",
            "# Held-out errors: family, how measured, n, median %, 90th percentile %, bias %, and",
            "# by how many % the measurement's medians lie above its robust times:",
        ]
        told = "#   {family}, {kind}: {n}, {median_pct:.1f}, {p90_pct:.1f}, {bias_pct:+.1f}, "
        lines += [f"{told}{{spread_pct:.1f}}".format(**row) for row in fit.errors]
    lines += [f"# {note}" for note in fit.notes]
    lines.append('kind = "device"')
    for entry in fields(fit.device):
        value = getattr(fit.device, entry.name)
        if entry.name not in ("sources", "calibration") and value is not None and value != ():
            lines.append(f"{entry.name} = {_value(value)}")
    sections: dict[str, Mapping[str, Any]] = {"source": fit.device.sources}
    for name, values in sorted(fit.device.calibration.items()):
        bare = name.replace("_", "").isalnum()
        sections[f"calibration.{name if bare else json.dumps(name)}"] = values
    for section, values in sections.items():
        lines.append(f"\n[{section}]")
        lines += [f"{key} = {_value(value)}" for key, value in values.items()]
    return "\n".join([*lines, ""])


def _value(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, float):
        return f"{value:.{PLACES}g}" if abs(value) < 1e15 else str(value)
    return str(value) if isinstance(value, int) else json.dumps(value, ensure_ascii=False)
