"""Errors of step times: replayed, held out, and of the null prediction."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.attribution.steps import by_rank, ranks_of
from perfmodel.graph.types import ExecutionGraph
from perfmodel.prediction.leave_out import left_out_step_us
from perfmodel.timeline.schedule import Timeline, measured
from perfmodel.trace.columns import Floats, Ints
from perfmodel.validate.device import DeviceWork
from perfmodel.validate.types import Kind, Row, rows_of

MOST_HELD_OUT = 12
"""Steps that are held out at most, spread evenly over the trace: each costs a replay per step."""


@dataclass(frozen=True)
class HeldOut:
    """`[rank, held step]`: predictions that have not seen the step."""

    step_us: Floats
    low_us: Floats
    """Bounds of the interval that the trace without the step gives; nan below 3 steps."""
    high_us: Floats


def held_out_steps(steady: Ints) -> Ints:
    """The step indices to hold out in turn."""
    if len(steady) <= MOST_HELD_OUT:
        return steady
    chosen: Ints = steady[np.linspace(0, len(steady) - 1, MOST_HELD_OUT).round().astype(int)]
    return chosen


def hold_out(graph: ExecutionGraph, work: DeviceWork, steady: Ints, held: Ints) -> HeldOut:
    """Predict each held step from the others: its host costs and its device durations."""
    shape = (len(ranks_of(graph)), len(held))
    step, low, high = (np.full(shape, np.nan) for _ in range(3))
    for at, index in enumerate(held.tolist()):
        others = np.setdiff1d(steady, [index])
        duration = graph.nodes_.duration_us.copy()
        own = work.step == index
        duration[work.node[own]] = work.predicted_us(index, others)
        found = by_rank(graph, left_out_step_us(graph, duration, others))
        step[:, at] = found[:, index]
        if len(others) > 1:
            low[:, at], high[:, at] = found[:, others].min(axis=1), found[:, others].max(axis=1)
    return HeldOut(step, low, high)


def step_rows(trace: str, replayed: Timeline, left: HeldOut, steady: Ints, held: Ints) -> list[Row]:
    """The rows of step times."""
    graph = replayed.graph
    truth = by_rank(graph, measured(graph).step_us)
    true, teachers = truth[:, held], truth[:, steady]
    with np.errstate(invalid="ignore"):
        null = (teachers.sum(axis=1, keepdims=True) - true) / np.float64(len(steady) - 1 or np.nan)
    replay = by_rank(graph, replayed.step_us)[:, held]
    return [
        *rows_of(trace, Kind.STEP_REPLAY, "step", replay, true),
        *rows_of(trace, Kind.STEP_LEFT_OUT, "step", left.step_us, true),
        *rows_of(trace, Kind.NULL, "step", null, true),
    ]


def coverage_frac(left: HeldOut, true_us: Floats) -> float | None:
    """Share of the steps within the interval of the others; None where there is none."""
    known = np.isfinite(left.low_us)
    if not known.any():
        return None
    inside = (left.low_us <= true_us) & (true_us <= left.high_us)
    return round(float(inside[known].mean()), 4)
