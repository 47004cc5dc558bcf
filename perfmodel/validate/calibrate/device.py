"""The file of a CPU from the times of whole steps: by how much its operators' overheads and their
work differ from the reference CPU's, checked on a half held out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from importlib.metadata import version
from math import ceil
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import msgspec
import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from perfmodel.base.answers import Begin, silent
from perfmodel.base.arrays import Floats
from perfmodel.base.files import read_bytes
from perfmodel.cost.contract import KERNELS
from perfmodel.cost.cpu.family import CpuFamily
from perfmodel.cost.cpu.parameters import parameters_on, section_of
from perfmodel.errors import HardwareError, UsageError
from perfmodel.hardware import Device, device
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS
from perfmodel.ops.vocabulary.streaming import CALL, HOST, NODE, STEP, UPDATE, VIEWS
from perfmodel.validate.calibrate.steps import (
    MAX_BYTES,
    MeasuredStep,
    predict_step,
    read_steps,
    step_rows,
    with_threads,
)
from perfmodel.validate.evaluate.results import error_figures

Tables = dict[str, dict[str, float]]
"""Section of a calibration (a family, or an op of it) to name to value."""
OVERHEAD = "overhead"
COUNTED = (CALL, NODE, UPDATE, STEP)
SOFT_STEP = 0.05
"""Residuals (of the logarithm) beyond which a step counts less."""
PULL_WORK, PULL_HOST = 1.0, 0.1
"""Pull of a factor towards 1, per factor of e: work of operators, and what the host does, of which
CPUs differ more. Assumed; 0.3 in place of 1 is a point worse on steps of traces/cpu_xeon_2."""


def fit_steps(steps: Sequence[MeasuredStep], base: Device) -> Tables:
    """A factor for each part of whole steps: of what host work takes, of operators' overhead, and
    of the work of each family, over what `base` is predicted to take for it."""
    parts = pd.DataFrame(
        [_parts_of(step_rows(step), with_threads(base, step.threads)) for step in steps]
    )
    parts = parts.fillna(0.0).sort_index(axis=1)
    values, log_us = parts.to_numpy(np.float64), np.log([step.step_us for step in steps])
    is_host = np.isin(list(parts), [OVERHEAD, *(section_of(HOST, each) for each in COUNTED)])
    pull = np.where(is_host, PULL_HOST, PULL_WORK)

    def residuals(logs: Floats) -> Floats:
        return np.concatenate([np.log(values @ np.exp(logs)) - log_us, pull * logs])

    solution = least_squares(residuals, 0.0 * pull, loss="soft_l1", f_scale=SOFT_STEP)
    tables: Tables = {}
    for part, factor in zip(parts, np.exp(solution.x).tolist(), strict=True):
        for section, name in _decided(part, list(parts)):
            family = section.partition(".")[0]
            known = parameters_on(family, section, _model(family).parameters, base)
            tables.setdefault(section, {})[name] = factor * known[name]
    return tables


def _model(family: str) -> CpuFamily:
    model = KERNELS[f"cpu/{family}/heuristic"]
    assert isinstance(model, CpuFamily)
    return model


def _parts_of(rows: Rows, device: Device) -> dict[str, float]:
    """What a step is made of, predicted microseconds: host work by what it is, overhead of all
    operators, their work by section of the calibration."""
    parts: dict[str, float] = {}
    families = np.array([OPS[op].family for op in rows.op], object)
    for family in dict.fromkeys(families.tolist()):
        model = _model(family)
        for _, call in model.calls(rows.take(np.flatnonzero(families == family)), device):
            # Embedding ops differ in what surrounds them; other families go as a whole.
            by_op = model.family == "embedding" or call.op in COUNTED
            work = call.section if by_op else OVERHEAD if family == HOST else model.family
            for name, term in model.breakdown(call).items():
                part = OVERHEAD if name == OVERHEAD else work
                parts[part] = parts.get(part, 0.0) + float(np.sum(term))
    return parts


def _decided(part: str, parts: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The parameters, section and name, that the factor of `part` multiplies."""
    if part != OVERHEAD:
        yield part, "each_us" if part.startswith(f"{HOST}.") else "work_ratio"
        return
    for family in sorted({each.partition(".")[0] for each in parts} - {OVERHEAD, HOST}):
        yield family, "overhead_ratio"
    for view in VIEWS:
        yield section_of(HOST, view), "work_ratio"


HELD_OUT_FRAC = 0.5
MIN_STEPS = 8
"""Configurations in either half."""
LEAST_SPREAD_FRAC = 0.005
COVERED_FRAC = 0.9
"""Of residuals, within the spread that is told: the ends of an interval of 90 %."""


@dataclass(frozen=True)
class DeviceFit:
    """A calibrated device, and how well it did on steps that it had not seen: `errors`, in which
    `bias_pct` is that of the summed time; `spread_pct` the measurement's own."""

    device: Device
    errors: list[dict[str, Any]]
    seed: int


def fit_any_device(
    paths: Sequence[Path],
    hardware: str | None = None,
    *,
    stem: str,
    seed: int = 0,
    begin: Begin = silent,
) -> tuple[DeviceFit, str]:
    """The fit of the CPU that the step tables at `paths` are of, and the text of its file.

    `hardware` names what to start from; `stem` is the device's new name. Raises `UsageError`.
    """
    steps: list[MeasuredStep] = []
    sources = []  # a line of each file
    for path in paths:
        own = read_steps(path)
        sha256 = hashlib.sha256(read_bytes(path, max_bytes=MAX_BYTES)).hexdigest()
        name = f"{path.absolute().parent.name}/{path.name}"
        sources.append(f"# {name}: sha256 {sha256}, {len(own)} rows")
        steps += own
    first = steps[0]
    for step in steps:
        if step.device != first.device:
            other = f"{step.where}: measured on {step.device!r}, but {first.where}"
            raise UsageError(f"{other}: on {first.device!r}: fit one device at a time")
    base = base_device(first.device, paths, hardware, stem)
    if base.target != "cpu":
        raise UsageError(
            f"{paths[0]}: measured on {base.name}, a GPU: `perfmodel fit kernels` fits its kernels"
        )
    fit = fit_device(steps, base, seed=seed, begin=begin)
    return fit, _device_toml(fit, sources)


def fit_device(
    steps: Sequence[MeasuredStep], base: Device, *, seed: int = 0, begin: Begin = silent
) -> DeviceFit:
    """Fit the CPU `base` to a random half of the configurations, for the errors on the other; then
    to all. Raises `UsageError` where they are too few."""
    names = sorted({step.name for step in steps})
    if len(names) < 2 * MIN_STEPS:
        where = steps[0].where.rpartition(": row ")[0]
        raise UsageError(f"{where}: {len(names)} configurations: a fit needs {2 * MIN_STEPS}")
    drawn = np.random.RandomState(seed).permutation(names)
    left_out = set(drawn[: ceil(HELD_OUT_FRAC * len(names))].tolist())
    known, held = ([it for it in steps if (it.name in left_out) is out] for out in (False, True))
    begin(f"one half, {len(known)} steps", 0, 2)
    half = _calibrated(base, fit_steps(known, base))
    predicted = np.array([predict_step(step, half)[0] for step in held])
    true = np.array([step.step_us for step in held])
    figures = error_figures(predicted, true)
    errors = {"n": len(held)} | {name: figures[name] for name in ("median_pct", "p90_pct")}
    own_frac = np.median(np.nan_to_num([step.halves_frac for step in held]))
    errors |= {"bias_pct": figures["total_pct"], "spread_pct": float(100 * own_frac)}
    begin(f"all, {len(steps)} steps", 1, 2)
    tables = fit_steps(steps, base)
    within = np.expm1(np.quantile(np.abs(np.log(predicted / true)), COVERED_FRAC))
    spread = {"spread_frac": float(max(within, LEAST_SPREAD_FRAC))}
    tables[section_of(HOST, STEP)] |= spread
    return DeviceFit(_calibrated(base, tables), [errors], seed)


def _calibrated(base: Device, tables: Tables) -> Device:
    """`base` with `tables` over those that it has."""
    old = base.calibration
    return replace(
        base, calibration={k: {**old.get(k, {}), **tables.get(k, {})} for k in {**old, **tables}}
    )


PLACES = 5
"""Significant digits of a fitted number."""


def _device_toml(fit: DeviceFit, sources: Sequence[str]) -> str:
    """The file: what it was fitted on as comments, then the device with its calibration."""
    made = f"{datetime.now(UTC):%Y-%m-%d}, perfmodel {version('perfmodel')}"
    lines = [f"# Fitted with `perfmodel fit device`: {made}, scipy {version('scipy')}.", *sources]
    lines.append(f"# A random half held out (seed {fit.seed}) for the errors, then fitted to all.")
    told = "# Held-out steps: {n}, {median_pct:.1f} % off in the median, {p90_pct:.1f} at the 90th "
    lines += [f"{told}percentile, bias {{bias_pct:+.1f}} %".format(**row) for row in fit.errors]
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


MAX_RECORD_BYTES = 10_000_000
_FLOP_PER_CLOCK = {"avx512f": 64.0, "avx2": 32.0, "neon": 16.0}
"""Two multiply-adds per clock of the vector width (makers' optimisation manuals, recalled)."""
_USUAL_FLOP_PER_CLOCK = 16.0
_ASSUMED_GB_PER_S_PER_CORE = 12.0
_ASSUMED_W_PER_CORE = 5.0
_ASSUMED_MHZ = 2500.0
"""Where a record says nothing."""

_Count = Annotated[int, msgspec.Meta(ge=1, le=10**6)]
_Bytes = Annotated[int, msgspec.Meta(ge=1, le=10**15)]


class _Cpu(msgspec.Struct):
    usable_cpus: _Count | None = None
    cache_bytes: dict[str, _Bytes] = {}
    clock_mhz: Annotated[float, msgspec.Meta(gt=0, le=1e6)] | None = None
    memory_bytes: _Bytes | None = None
    vector: list[str] = []


class _Machine(msgspec.Struct):
    """What of a record says what a CPU is."""

    cpu: _Cpu | None = None
    gpu: Any = None
    intra_op_threads: _Count | None = None
    date: str = "undated"

    @property
    def cores(self) -> int:
        """The threads that were measured, or those that there are; 0: not said."""
        return self.intra_op_threads or (self.cpu and self.cpu.usable_cpus) or 0

    def __post_init__(self) -> None:
        if self.cpu and not self.cores:
            raise ValueError("neither intra_op_threads nor usable_cpus")


class _Record(msgspec.Struct):
    machine: _Machine


def base_device(name: str, tables: Sequence[Path], given: str | None, stem: str) -> Device:
    """The device to fit: `given` by name or file, else as the collector's record beside the first
    of `tables` that has one describes it.

    A GPU is looked up in the catalogue by its driver's `name`. Raises `UsageError`.
    """
    if given:
        return device(given)
    stems = (table.name.split(".")[0].removesuffix("_steps") for table in tables)
    paths = (at.with_name(f"{each}_meta.json") for at, each in zip(tables, stems, strict=True))
    record = next((path for path in paths if path.is_file()), None)
    if record is not None:
        content = read_bytes(record, max_bytes=MAX_RECORD_BYTES)
        try:
            machine = msgspec.json.decode(content, type=_Record, strict=False).machine
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise UsageError(f"{record}: not a record of the collector: {error}") from None
        if machine.gpu is None and machine.cpu is not None:
            return _cpu(name, machine, machine.cpu, stem)
    try:
        return device(name)
    except HardwareError as error:
        raise UsageError(
            f"{tables[0]}: no record of the machine in its folder ({error}): name a similar "
            "device with --hardware"
        ) from None


def _cpu(name: str, record: _Machine, cpu: _Cpu, stem: str) -> Device:
    measured = f"the collector's record, {record.date}"
    cores, mhz = record.cores, cpu.clock_mhz or _ASSUMED_MHZ
    vectors = [rate for flag, rate in _FLOP_PER_CLOCK.items() if flag in cpu.vector]
    per_clock = max(vectors, default=_USUAL_FLOP_PER_CLOCK)
    figures: dict[str, tuple[Any, str]] = {
        "sm_count": (cores, f"{measured}: intra-op threads"),
        "boost_mhz": (mhz, measured),
        "tdp_w": (_ASSUMED_W_PER_CORE * cores, "assumed: 5 W a core"),
        "hbm_bytes": (cpu.memory_bytes or 8 * 2**30, measured),
        "hbm_gb_per_s": (_ASSUMED_GB_PER_S_PER_CORE * cores, "assumed: 12 GB/s a core"),
        "l2_bytes": (cpu.cache_bytes.get("L2", 2**20) * cores, f"{measured}: of each core"),
        "llc_bytes": (cpu.cache_bytes.get("L3", 8 * 2**20), measured),
        "fp32_tflop_per_s": (
            cores * mhz * per_clock / 1e6,
            f"{cores} threads x {mhz:.0f} MHz x {per_clock:.0f} per clock",
        ),
        "kernel_floor_us": (1.0, "assumed: an operator that does next to nothing"),
    }
    sources = MappingProxyType({key: text for key, (_, text) in figures.items()})
    values = {key: value for key, (value, _) in figures.items()}
    return Device(name=stem, target="cpu", aliases=(name,), sources=sources, **values)
