"""A replay that cannot echo what it predicts: host costs of other steps; naive predictions."""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan

import numpy as np

from perfmodel.arrays import Floats, Ints
from perfmodel.graph.kinds import Scope
from perfmodel.graph.types import ExecutionGraph
from perfmodel.timeline.idle import DeviceWork, account
from perfmodel.timeline.schedule import Timeline, schedule
from perfmodel.timeline.steps import by_rank_and_step, ranks_of, step_bounds


def left_out_step_us(graph: ExecutionGraph, duration_us: Floats, steady: Ints) -> Floats:
    """Per row of `graph.marks`: the step's duration with its host costs taken from the others.

    Device durations stay the step's own. `steady` are the step indices whose costs count (warm-up
    and outliers do not teach). A step with no other to learn from is nan.
    """
    steps = len(graph.marks.name) // max(len(np.unique(graph.marks.rank)), 1)
    step_of = step_of_nodes(graph)
    host = np.flatnonzero((graph.nodes_.scope == Scope.HOST) & (step_of >= 0))
    keys = [_groups(graph, host, step_of[host], level) for level in range(3)]
    times_us = np.full(len(graph.marks.name), np.nan)
    for step in range(steps):
        teachers = np.isin(step_of[host], np.setdiff1d(steady, [step]))
        if not teachers.any():
            continue
        replaced = duration_us.copy()
        own = step_of[host] == step
        replaced[host[own]] = _mean_of_other_steps(keys, duration_us[host], teachers)[own]
        times_us[step::steps] = schedule(graph, replaced).step_us[step::steps]
    return times_us


def step_of_nodes(graph: ExecutionGraph) -> Ints:
    """Per node: index of the step of its rank that it began in, or -1 before the first."""
    nodes, marks = graph.nodes_, graph.marks
    step_of = np.full(len(graph), -1, np.int64)
    for rank in np.unique(marks.rank):
        starts = nodes.start_us[marks.start[marks.rank == rank]]
        own = nodes.rank == rank
        step_of[own] = np.searchsorted(starts, nodes.start_us[own], side="right") - 1
    return step_of


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


def _mean_of_other_steps(keys: list[Ints], duration_us: Floats, teachers: np.ndarray) -> Floats:
    """Per host node: mean duration of the teachers of its finest group that has any."""
    means = np.full(len(duration_us), np.nan)
    for group in keys:
        count = np.bincount(group[teachers], minlength=group.max() + 1)
        total = np.bincount(group[teachers], duration_us[teachers], minlength=group.max() + 1)
        with np.errstate(invalid="ignore"):
            mean = (total / count)[group]
        means = np.where(np.isnan(means), mean, means)
    return np.where(np.isnan(means), duration_us[teachers].mean(), means)


@dataclass(frozen=True)
class NaivePredictions:
    """`[rank, step]`, microseconds; nan where nothing can be said."""

    mean_us: Floats
    """The mean of the other steady steps."""
    mean_gpu_us: Floats
    """The same and by how much longer the device was active in the step than, in the mean, in
    those; nan for a rank without device work."""
    last_us: Floats
    """The steady step before it."""

    def of(self, rank: int, step: int) -> tuple[float | None, float | None, float | None]:
        """The three of one step (indices), None for nan."""
        figures = (self.mean_us, self.mean_gpu_us, self.last_us)
        mean, mean_gpu, last = (float(figure[rank, step]) for figure in figures)
        return _known(mean), _known(mean_gpu), _known(last)


def _known(value: float) -> float | None:
    return None if isnan(value) else value


def naive_predictions(measured: Timeline, steady: Ints) -> NaivePredictions:
    """Naive predictions of every step of a measured trace, from its `steady` steps."""
    graph = measured.graph
    step_us = by_rank_and_step(graph, measured.step_us)
    active_us = by_rank_and_step(graph, _active_us(measured))
    with_device = active_us.any(axis=1, keepdims=True)
    before = [steady[steady < step] for step in range(step_us.shape[1])]
    last = [step_us[:, own[-1]] if len(own) else np.full(len(step_us), np.nan) for own in before]
    mean_us = _mean_of_others(step_us, steady)
    more_us = active_us - _mean_of_others(active_us, steady)
    mean_gpu_us = np.where(with_device, np.maximum(mean_us + more_us, 0), np.nan)
    return NaivePredictions(mean_us, mean_gpu_us, np.stack(last, axis=1))


def _mean_of_others(figure: Floats, steady: Ints) -> Floats:
    """Per rank and step, the mean of the steady steps but the step itself."""
    means = np.full_like(figure, np.nan)
    for step in range(figure.shape[1]):
        others = steady[steady != step]
        if len(others):
            means[:, step] = figure[:, others].mean(axis=1)
    return means


def _active_us(measured: Timeline) -> Floats:
    """Per row of the marks: how long anything ran on the rank's device in the step."""
    graph = measured.graph
    active_us = np.zeros(len(graph.marks.name))
    for rank in ranks_of(graph):
        device = DeviceWork.of(measured, rank)
        for mark in np.flatnonzero(graph.marks.rank == rank).tolist():
            active_us[mark] = account(device, *step_bounds(measured, mark)).gpu_active_us
    return active_us
