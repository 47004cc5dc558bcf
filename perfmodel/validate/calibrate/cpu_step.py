"""Measured steps on a CPU, predicted from shapes."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from perfmodel.cost.chosen import HEURISTIC
from perfmodel.cost.contract import KERNELS
from perfmodel.cost.cpu.parameters import reference_cpu, section_of, spread_of
from perfmodel.cost.durations import durations_of
from perfmodel.cost.models import waiting_frac
from perfmodel.hardware import Device
from perfmodel.lowering.build_cpu import cpu_steps, rows_of
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS
from perfmodel.ops.vocabulary.movement import COLLECTIVE, HOST, STEP
from perfmodel.validate.calibrate.tables import MeasuredStep
from perfmodel.workload import op_graph

Time = tuple[float, float, float]
"""Predicted time of one step and its 90 % interval, microseconds."""


def predict_step(step: MeasuredStep, device: Device) -> Time:
    """The slowest of the ranks' steps; a rank runs on as many cores as it has threads."""
    return max(_rank(step, rank, device) for rank in range(step.ranks))


@lru_cache(maxsize=1024)  # steps are predicted as one half, then all of them are fitted
def step_rows(step: MeasuredStep, rank: int = 0) -> Rows:
    """The pieces of one rank's step as rows."""
    graph = op_graph(step.workload, step.batch, ranks=step.ranks, rank=rank, target="cpu")
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


def _rank(step: MeasuredStep, rank: int, device: Device) -> Time:
    rows = step_rows(step, rank)
    is_collective = np.array([OPS[op].family == COLLECTIVE for op in rows.op])
    among, alone = (rows.take(np.flatnonzero(own)) for own in (is_collective, ~is_collective))
    seen = with_threads(device, step.threads, step.ranks)
    total = float(durations_of(alone, seen).duration_us.sum())
    total *= 1.0 + waiting_frac(device, step.ranks)  # for the last rank at each collective
    loopback = KERNELS[f"cpu/{COLLECTIVE}/{HEURISTIC}"]
    total += float(loopback.estimate(among, device).duration_us.sum())
    section = section_of(HOST, STEP)
    own = device.calibration.get(section, {}).get("spread_frac")  # none while steps are fitted
    known = reference_cpu().calibration[section]["spread_frac"] if own is None else own
    spread = spread_of(known, calibrated=own is not None)
    return total, total / spread, total * spread
