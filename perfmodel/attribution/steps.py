"""Which steps are warm-up, and which rank is the slowest: decided for all ranks together."""

from __future__ import annotations

import numpy as np

from perfmodel.graph.kinds import NodeKind
from perfmodel.graph.types import ExecutionGraph
from perfmodel.timeline.schedule import Timeline
from perfmodel.trace.columns import Floats, Ints, Mask

WARMUP_FACTOR = 1.5
WARMUP_ALLOCATOR_FRAC = 1 / 3


def ranks_of(graph: ExecutionGraph) -> list[int]:
    """The ranks of a graph, in order."""
    return list(dict.fromkeys(graph.marks.rank.tolist()))


def step_bounds(timeline: Timeline, mark: int) -> tuple[float, float]:
    """When the step of a row of `graph.marks` begins and ends."""
    marks = timeline.graph.marks
    return float(timeline.end_us[marks.start[mark]]), float(timeline.end_us[marks.end[mark]])


def by_rank(graph: ExecutionGraph, per_mark: Floats) -> Floats:
    """`[rank, step]` from one value per row of `graph.marks`."""
    return per_mark.reshape(len(ranks_of(graph)), -1)


def warmup_steps(measured: Timeline) -> Mask:
    """Per step: above 1.5 times the median step, or more than a third of it in the allocator.

    Both in the mean over ranks, so that all ranks agree.
    """
    graph = measured.graph
    step_us = by_rank(graph, measured.step_us).mean(axis=0)
    allocator_us = by_rank(graph, _allocator_us(measured)).mean(axis=0)
    slow: Mask = step_us > WARMUP_FACTOR * np.median(step_us)
    stuck: Mask = allocator_us > WARMUP_ALLOCATOR_FRAC * step_us
    return slow | stuck


def steady_steps(measured: Timeline) -> Ints:
    """Indices of the steps that are not warm-up; all of them where every one is."""
    warmup = warmup_steps(measured)
    return np.flatnonzero(~warmup) if not warmup.all() else np.arange(len(warmup))


def _allocator_us(measured: Timeline) -> Floats:
    """Per row of the marks: time of the rank's host threads in the allocator within the step."""
    graph = measured.graph
    nodes, marks = graph.nodes_, graph.marks
    rows = np.flatnonzero(nodes.kind == NodeKind.ALLOCATOR)
    total = np.zeros(len(marks.name))
    for mark, (begun, over) in enumerate(
        zip(measured.end_us[marks.start], measured.end_us[marks.end], strict=True)
    ):
        own = rows[nodes.rank[rows] == marks.rank[mark]]
        clipped = measured.end_us[own].clip(begun, over) - measured.start_us[own].clip(begun, over)
        total[mark] = clipped.sum()
    return total
