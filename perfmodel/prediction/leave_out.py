"""Host costs of one step from the other steps: a replay that cannot echo what it predicts."""

from __future__ import annotations

import numpy as np

from perfmodel.graph.kinds import Scope
from perfmodel.graph.types import ExecutionGraph
from perfmodel.timeline.schedule import schedule
from perfmodel.trace.columns import Floats, Ints


def left_out_step_us(graph: ExecutionGraph, duration_us: Floats, steady: Ints) -> Floats:
    """Per row of `graph.marks`: the step's duration with its host costs taken from the others.

    Device durations stay the step's own. `steady` are the step indices whose costs count (warm-up
    and outliers do not teach). A step with no other to learn from is nan.
    """
    steps = len(graph.marks.name) // max(len(np.unique(graph.marks.rank)), 1)
    step_of = step_of_nodes(graph)
    host = np.flatnonzero((graph.nodes_.scope == Scope.HOST) & (step_of >= 0))
    keys = [_groups(graph, host, step_of[host], level) for level in range(3)]
    found = np.full(len(graph.marks.name), np.nan)
    for step in range(steps):
        teachers = np.isin(step_of[host], np.setdiff1d(steady, [step]))
        if not teachers.any():
            continue
        replaced = duration_us.copy()
        own = step_of[host] == step
        replaced[host[own]] = _learned(keys, duration_us[host], teachers)[own]
        found[step::steps] = schedule(graph, replaced).step_us[step::steps]
    return found


def step_of_nodes(graph: ExecutionGraph) -> Ints:
    """Per node: index of the step of its rank that it began in, or -1 before the first."""
    nodes, marks = graph.nodes_, graph.marks
    found = np.full(len(graph), -1, np.int64)
    for rank in np.unique(marks.rank):
        starts = nodes.start_us[marks.start[marks.rank == rank]]
        own = nodes.rank == rank
        found[own] = np.searchsorted(starts, nodes.start_us[own], side="right") - 1
    return found


def _groups(graph: ExecutionGraph, host: Ints, step: Ints, level: int) -> Ints:
    """Group of each host node: nodes of one group stand in for one another.

    Level 0: the same piece of the same operator, n-th of its kind in its step; 1: any of its kind;
    2: any of its overhead type on its thread.
    """
    nodes = graph.nodes_
    _, label = np.unique(
        np.array(graph.labels, dtype=object)[host].astype(str), return_inverse=True
    )
    columns = [nodes.resource[host], nodes.cause[host], nodes.kind[host]]
    if level < 2:
        columns.append(label)
    group = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)[1].reshape(-1)
    if level > 0:
        return group
    order = np.lexsort((np.arange(len(host)), nodes.start_us[host], group, step))
    change = np.diff(group[order], prepend=-1) != 0
    change |= np.diff(step[order], prepend=-2) != 0
    begun = np.maximum.accumulate(np.where(change, np.arange(len(host)), 0))
    nth = np.empty(len(host), np.int64)
    nth[order] = np.arange(len(host)) - begun
    return np.unique(np.stack([group, nth], axis=1), axis=0, return_inverse=True)[1].reshape(-1)


def _learned(keys: list[Ints], duration_us: Floats, teachers: np.ndarray) -> Floats:
    """Per host node: mean duration of the teachers of its finest group that has any."""
    found = np.full(len(duration_us), np.nan)
    for group in keys:
        count = np.bincount(group[teachers], minlength=group.max() + 1)
        total = np.bincount(group[teachers], duration_us[teachers], minlength=group.max() + 1)
        with np.errstate(invalid="ignore"):
            mean = (total / count)[group]
        found = np.where(np.isnan(found), mean, found)
    return np.where(np.isnan(found), duration_us[teachers].mean(), found)
