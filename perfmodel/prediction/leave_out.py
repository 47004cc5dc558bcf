"""A replay that cannot echo what it predicts: host costs of other steps; naive predictions."""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan

import numpy as np

from perfmodel.arrays import Floats, Ints, Mask
from perfmodel.graph.kinds import Scope
from perfmodel.graph.recorded_steps import step_of_nodes
from perfmodel.graph.types import ExecutionGraph
from perfmodel.timeline.idle import DeviceWork, account
from perfmodel.timeline.period import Periods
from perfmodel.timeline.schedule import Timeline
from perfmodel.timeline.steps import by_rank_and_step, ranks_of, step_bounds
from perfmodel.trace.columns import NONE


def left_out_change_us(
    graph: ExecutionGraph, duration_us: Floats, steady: Ints, given_us: Floats | None = None
) -> Floats:
    """`[rank, step]`: by how much a step's period changes where its host costs are those of the
    others; nan for a step with no other to learn from.

    `steady` are the steps whose costs count (warm-up and outliers do not teach). Device durations
    are `given_us` (default: the step's own).
    """
    count = len(graph.marks.name) // max(len(ranks_of(graph)), 1)
    periods = Periods.of(graph, np.arange(count))
    taken_us = duration_us if given_us is None else given_us
    changed_us = with_host_of_others(graph, taken_us, steady)
    change_us = periods.step_us(changed_us) - periods.step_us(duration_us)
    teaches = np.isin(np.arange(count), steady)
    change_us[:, teaches.sum() - teaches == 0] = np.nan
    return change_us


def with_host_of_others(graph: ExecutionGraph, duration_us: Floats, steady: Ints) -> Floats:
    """`duration_us` with what each host piece takes in the mean of the other `steady` steps."""
    count = len(graph.marks.name) // max(len(ranks_of(graph)), 1)
    step_of = step_of_nodes(graph)
    host = np.flatnonzero((graph.nodes_.scope == Scope.HOST) & (step_of != NONE))
    host = host[np.argsort(step_of[host], kind="stable")]
    step = step_of[host]
    first = np.searchsorted(step, np.arange(count + 1)).tolist()
    groups = [*(_groups(graph, host, step, level) for level in range(3)), np.zeros(len(host), int)]
    teaches = np.isin(np.arange(count), steady)
    means_us = _mean_of_other_steps(groups, duration_us[host], first, teaches)
    result = duration_us.copy()
    result[host] = np.where(np.isnan(means_us), result[host], means_us)
    return result


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


def _mean_of_other_steps(
    groups: list[Ints], duration_us: Floats, first: list[int], teaches: Mask
) -> Floats:
    """Per host node: mean duration in the other steps that teach, of its finest group (`groups`
    are from fine to coarse) that has any there; nan where nothing teaches. Nodes are by step, which
    begins at `first`."""
    means = np.full(len(duration_us), np.nan)
    for group in groups:
        total, count = np.zeros(len(means)), np.zeros(len(means))
        for order in (range(len(teaches)), reversed(range(len(teaches)))):
            sums, counts = (np.zeros(group.max(initial=0) + 1) for _ in range(2))
            for at in order:
                own = slice(first[at], first[at + 1])
                total[own] += sums[group[own]]
                count[own] += counts[group[own]]
                if teaches[at]:
                    np.add.at(sums, group[own], duration_us[own])
                    np.add.at(counts, group[own], 1)
        with np.errstate(invalid="ignore"):
            means = np.where(np.isnan(means), total / count, means)
    return means


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
    before = np.searchsorted(steady, np.arange(step_us.shape[1])) - 1
    last_us = np.where(before >= 0, step_us[:, np.append(steady, 0)[before]], np.nan)
    mean_us = _mean_of_others(step_us, steady)
    more_us = active_us - _mean_of_others(active_us, steady)
    mean_gpu_us = np.where(with_device, np.maximum(mean_us + more_us, 0), np.nan)
    return NaivePredictions(mean_us, mean_gpu_us, last_us)


def _mean_of_others(figure: Floats, steady: Ints) -> Floats:
    """Per rank and step, the mean of the steady steps but the step itself."""
    taught = np.zeros_like(figure)
    taught[:, steady] = figure[:, steady]
    forward, backward = (np.cumsum(each, axis=1) for each in (taught, taught[:, ::-1]))
    others = np.zeros_like(figure)
    others[:, 1:] += forward[:, :-1]
    others[:, :-1] += backward[:, -2::-1]
    count = len(steady) - np.isin(np.arange(figure.shape[1]), steady)
    means: Floats = np.where(count > 0, others / np.maximum(count, 1), np.nan)
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
