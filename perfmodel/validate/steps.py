"""Errors of step times: replayed, held out, and of the null predictions."""

from __future__ import annotations

import numpy as np

from perfmodel.attribution.steps import by_rank, ranks_of
from perfmodel.graph.types import ExecutionGraph
from perfmodel.prediction.leave_out import left_out_step_us
from perfmodel.prediction.nulls import nulls
from perfmodel.prediction.step_spread import interval, median_errors
from perfmodel.timeline.schedule import Timeline, measured
from perfmodel.trace.columns import Floats, Ints
from perfmodel.validate.device import DeviceWork
from perfmodel.validate.types import Kind, Row, rows_of

MOST_HELD_OUT = 12
"""Steps that are held out at most, spread evenly over the trace: each costs a replay per step."""


def held_out_steps(steady: Ints) -> Ints:
    """The step indices to hold out in turn."""
    if len(steady) <= MOST_HELD_OUT:
        return steady
    chosen: Ints = steady[np.linspace(0, len(steady) - 1, MOST_HELD_OUT).round().astype(int)]
    return chosen


def hold_out(graph: ExecutionGraph, work: DeviceWork, steady: Ints, held: Ints) -> Floats:
    """`[rank, held step]`: each predicted from the others, its host costs and device durations."""
    step_us = np.full((len(ranks_of(graph)), len(held)), np.nan)
    for at, index in enumerate(held.tolist()):
        others = np.setdiff1d(steady, [index])
        duration = graph.nodes_.duration_us.copy()
        own = work.step == index
        duration[work.node[own]] = work.predicted_us(index, others)
        step_us[:, at] = by_rank(graph, left_out_step_us(graph, duration, others))[:, index]
    return step_us


def step_rows(
    trace: str, replayed: Timeline, left_out_us: Floats, steady: Ints, held: Ints
) -> list[Row]:
    """The rows of step times."""
    graph = replayed.graph
    truth = measured(graph)
    true = by_rank(graph, truth.step_us)[:, held]
    beside = nulls(truth, steady)
    return [
        *rows_of(trace, Kind.STEP_REPLAY, "step", by_rank(graph, replayed.step_us)[:, held], true),
        *rows_of(trace, Kind.STEP_LEFT_OUT, "step", left_out_us, true),
        *rows_of(trace, Kind.NULL, "step", beside.mean_us[:, held], true),
        *rows_of(trace, Kind.NULL_GPU, "step", beside.mean_gpu_us[:, held], true),
        *rows_of(trace, Kind.NULL_LAST, "step", beside.last_us[:, held], true),
    ]


def coverage_frac(replayed: Timeline, steady: Ints, held: Ints) -> float | None:
    """Share of the held steps within the interval that a replay of the others gives; None below 3
    steps."""
    if len(steady) < 3:
        return None
    graph = replayed.graph
    true, predicted = by_rank(graph, measured(graph).step_us), by_rank(graph, replayed.step_us)
    inside = []
    for rank_us, true_us in zip(predicted, true, strict=True):
        for step in held:
            others = rank_us[steady[steady != step]]
            low, high = interval(float(np.median(others)), median_errors(others))
            inside.append(low <= true_us[step] <= high)
    return round(float(np.mean(inside)), 4)
