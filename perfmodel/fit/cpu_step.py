"""One measured configuration's step predicted on a CPU, from its shapes alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from perfmodel.duration import HEURISTIC, durations_of
from perfmodel.fit.step_table import MeasuredStep
from perfmodel.hardware import Device
from perfmodel.kernels.cpu.parameters import section_of
from perfmodel.kernels.model import KERNELS
from perfmodel.kernels.models.cpu_collective import waiting_frac
from perfmodel.lowering.cpu_step import cpu_steps
from perfmodel.lowering.step_rows import rows_of
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS
from perfmodel.ops.vocabulary.collective import COLLECTIVE
from perfmodel.ops.vocabulary.host import HOST, STEP
from perfmodel.workload import op_graph

WAITING = "waiting"
"""For the last rank at each collective, beside the families of what a rank does."""
UNCALIBRATED_FRAC = 0.5
"""Half-width of the interval of a step on a device without a calibration."""


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
    return max(ranks, key=lambda found: found.duration_us)


def step_rows(step: MeasuredStep, rank: int = 0) -> Rows:
    """The pieces of one rank's step as rows."""
    graph = op_graph(
        step.workload,
        step.batch,
        ranks=step.ranks,
        rank=rank,
        target="cpu",
        threads=step.threads,
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
    host_step = device.calibration.get(section_of(HOST, STEP), {})
    spread = 1 + host_step.get("spread_frac", UNCALIBRATED_FRAC)
    return PredictedStep(total, total / spread, total * spread, parts)
