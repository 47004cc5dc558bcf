"""Measured steps on a CPU: predicted from shapes, their host work, drift since calibration."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.files import read_bytes
from perfmodel.collect.records import PARTS
from perfmodel.cost.contract import KERNELS
from perfmodel.cost.cpu.call import WATCHED, reference_cpu, section_of, spread_of
from perfmodel.cost.cpu.drift import UNKNOWN, Z90, Drift, drift_since, drifted, uncalibrated
from perfmodel.cost.cpu.family import CpuFamily
from perfmodel.cost.durations import HEURISTIC, durations_of
from perfmodel.cost.models import waiting_frac
from perfmodel.errors import UsageError
from perfmodel.hardware import Device
from perfmodel.lowering.build_cpu import cpu_steps, rows_of
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS
from perfmodel.ops.vocabulary.host import CALL, HOST, NODE, STEP, UPDATE, VIEWS
from perfmodel.ops.vocabulary.movement import COLLECTIVE
from perfmodel.validate.calibrate.tables import MeasuredStep
from perfmodel.workload import Workload, op_graph

if TYPE_CHECKING:
    import pandas as pd


Tables = dict[str, dict[str, float]]
"""Section of a calibration (a family, or an op of it) to name to value."""
WAITING = "waiting"
"""For the last rank at each collective, beside the families of what a rank does."""


@dataclass(frozen=True)
class PredictedStep:
    """Predicted time of one step, its 90 % interval, and its parts by family; microseconds."""

    duration_us: float
    low_us: float
    high_us: float
    by_family_us: dict[str, float]


def predict_step(step: MeasuredStep, device: Device) -> PredictedStep:
    """The slowest of the ranks' steps; a rank runs on as many cores as it has threads."""
    ranks = [_rank(step, rank, device) for rank in range(step.ranks)]
    return max(ranks, key=lambda table_times: table_times.duration_us)


def steps_us(steps: Sequence[MeasuredStep], device: Device) -> Floats:
    """Predicted times of `steps`, microseconds."""
    return np.array([predict_step(step, device).duration_us for step in steps])


def step_rows(step: MeasuredStep, rank: int = 0) -> Rows:
    """The pieces of one rank's step as rows."""
    return _rows(step.workload, step.ranks, rank, step.threads)


@lru_cache(maxsize=1024)  # a fit asks for the same steps on every device that it tries
def _rows(workload: Workload, ranks: int, rank: int, threads: int) -> Rows:
    graph = op_graph(
        workload, workload.batch, ranks=ranks, rank=rank, target="cpu", threads=threads
    )
    (pieces,) = cpu_steps(graph)
    return rows_of(pieces)


def with_threads(device: Device, threads: int, ranks: int = 1) -> Device:
    """`device` as so many of its cores see it; of the last-level cache, one of `ranks` has a part.

    Bandwidth is no part: of two processes on one socket, each streamed, and looked up rows, in 0.93
    to 1.05 of the time of one alone (`benchmarks/contention.py`, AMD EPYC, 2026-11-20, while other
    work ran too).
    """
    if device.llc_bytes:
        device = replace(device, llc_bytes=round(device.llc_bytes / ranks))
    if threads >= device.sm_count:
        return device
    share = threads / device.sm_count
    return replace(
        device,
        sm_count=threads,
        l2_bytes=round(device.l2_bytes * share),
        fp32_tflop_per_s=device.fp32_tflop_per_s * share,
    )


def _rank(step: MeasuredStep, rank: int, device: Device) -> PredictedStep:
    rows = step_rows(step, rank)
    families = np.array([OPS[op].family for op in rows.op], object)
    times = np.empty(len(rows))
    among = np.flatnonzero(families == COLLECTIVE)
    alone = np.flatnonzero(families != COLLECTIVE)
    times[alone] = durations_of(
        rows.take(alone), with_threads(device, step.threads, step.ranks)
    ).duration_us
    loopback = KERNELS[f"cpu/{COLLECTIVE}/{HEURISTIC}"]
    times[among] = loopback.estimate(rows.take(among), device).duration_us
    parts = {name: float(times[families == name].sum()) for name in dict.fromkeys(families)}
    if step.ranks > 1:
        parts[WAITING] = waiting_frac(device, step.ranks) * float(times[alone].sum())
    total = sum(parts.values())
    section = section_of(HOST, STEP)
    own = device.calibration.get(section, {}).get("spread_frac")  # none while steps are fitted
    known = reference_cpu().calibration[section]["spread_frac"] if own is None else own
    spread = spread_of(device, known, calibrated=own is not None)
    return PredictedStep(total, total / spread, total * spread, parts)


OVERHEAD = "overhead"
COUNTED = (CALL, NODE, UPDATE, STEP)
SOFT = 0.05
PRIOR_RATIO, PRIOR_EACH = 1.0, 0.1
"""Pull towards 1 of a ratio, and towards the usual value of a host cost, per factor of e."""
USUAL_US = {CALL: 1.0, NODE: 2.0, UPDATE: 3.0, STEP: 60.0}


def parts_of(steps: Sequence[Rows], device: Device) -> pd.DataFrame:
    """What each step (row) is made of: overhead of operators and their work by section, predicted
    microseconds; counts of host work."""
    import pandas as pd

    sums: list[dict[str, float]] = []
    for rows in steps:
        of_step: dict[str, float] = {}
        watched = replace(rows, timing=(WATCHED,) * len(rows))
        families = np.array([OPS[op].family for op in rows.op], object)
        for family in dict.fromkeys(families.tolist()):
            model = KERNELS[f"cpu/{family}/heuristic"]
            assert isinstance(model, CpuFamily)
            own = watched.take(np.flatnonzero(families == family))
            for _, call in model.calls(own, device):
                if call.op in COUNTED:
                    counted = float((call.dims["count"] * call.crowding()).sum())
                    of_step[call.op] = of_step.get(call.op, 0.0) + counted
                    continue
                # Embedding ops differ in what surrounds them; other families go as a whole.
                work = call.section if model.family == "embedding" else model.family
                for name, term in model.breakdown(call).items():
                    part = OVERHEAD if name == OVERHEAD or family == HOST else work
                    of_step[part] = of_step.get(part, 0.0) + float(term.sum())
        sums.append(of_step)
    return pd.DataFrame(sums).fillna(0.0).sort_index(axis=1)


def fit_host(parts: pd.DataFrame, step_us: Floats) -> dict[str, float]:
    """A factor for each part: microseconds each of host work, a ratio of everything else."""
    from scipy.optimize import least_squares

    names = list(parts)
    usual = np.log([USUAL_US.get(name, 1.0) for name in names])
    is_host = np.isin(names, (*COUNTED, OVERHEAD))
    pull = np.where(is_host, PRIOR_EACH, PRIOR_RATIO)
    limit = np.where(is_host, 4.0, np.log(3.0)) + 1e-9
    values = parts.to_numpy(np.float64)

    def residuals(logs: Floats) -> Floats:
        predicted = values @ np.exp(logs)
        return np.concatenate([np.log(predicted / step_us), pull * (logs - usual)])

    bounds = (usual - limit, usual + limit)
    solution = least_squares(residuals, usual, bounds=bounds, loss="soft_l1", f_scale=SOFT)
    return dict(zip(names, np.exp(solution.x).tolist(), strict=True))


def with_host(tables: Tables, factors: Mapping[str, float]) -> Tables:
    """`tables` with the factors in their places."""
    scaled = {section: dict(values) for section, values in tables.items()}
    for name, factor in factors.items():
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
