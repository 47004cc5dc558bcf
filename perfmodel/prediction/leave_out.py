"""Leave-one-step-out replay: steps with the host costs of the others; naive predictions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.base.arrays import Floats, Ints, Mask
from perfmodel.timeline.graph.kinds import Scope
from perfmodel.timeline.graph.recorded_steps import step_of_nodes
from perfmodel.timeline.graph.types import ExecutionGraph
from perfmodel.timeline.idle import DeviceWork, account
from perfmodel.timeline.period import Periods
from perfmodel.timeline.schedule import Timeline
from perfmodel.timeline.steps import by_rank_and_step, ranks_of, step_bounds
from perfmodel.trace.columns import NONE


@dataclass(frozen=True)
class LeaveOneOut:
    """A step that was predicted from the others, and what needs no model. Microseconds."""

    low_us: float
    """90 % interval of the step, from the errors of leaving the others out."""
    high_us: float
    null_mean_us: float | None
    """Without a model: the mean of the other steps, that mean with the difference in device time
    added, the last step before; None where there are no others."""
    null_mean_gpu_us: float | None
    null_last_us: float | None


def left_out_change_us(
    graph: ExecutionGraph, duration_us: Floats, steady: Ints, given_us: Floats | None = None
) -> Floats:
    """`[rank, step]`: by how much a step's period changes where its host costs are those of the
    others; nan for a step with no other to learn from.

    `steady` are the steps whose costs count (not warm-up and outliers). Device durations are
    `given_us` (default: the step's own).
    """
    count = len(graph.marks.name) // max(len(ranks_of(graph)), 1)
    counts = np.isin(np.arange(count), steady)
    periods = Periods.of(graph, np.arange(count))
    step_of = step_of_nodes(graph)
    host = np.flatnonzero((graph.nodes_.scope == Scope.HOST) & (step_of != NONE))
    host = host[np.argsort(step_of[host], kind="stable")]
    changed_us = (duration_us if given_us is None else given_us).copy()
    own_us, step = changed_us[host], step_of[host]
    means_us = np.full(len(host), np.nan)
    for group in _groups(graph, host, step):
        others_us = _mean_of_other_steps(group, step, own_us, counts)
        means_us = np.where(np.isnan(means_us), others_us, means_us)
    changed_us[host] = np.where(np.isnan(means_us), own_us, means_us)
    change_us = periods.step_us(changed_us) - periods.step_us(duration_us)
    change_us[:, counts.sum() - counts == 0] = np.nan
    return change_us


def _groups(graph: ExecutionGraph, host: Ints, step: Ints) -> list[Ints]:
    """Groups of host nodes that stand in for one another, from fine to coarse: the same piece of
    the same operator, n-th of its kind in its step; any of its kind; any of its overhead type on
    its thread; all."""
    nodes = graph.nodes_
    labels = np.array(graph.labels, dtype=object)[host].astype(str)
    where = [nodes.resource[host], nodes.cause[host], nodes.kind[host]]
    of_kind = _classes([*where, np.unique(labels, return_inverse=True)[1]])
    order = np.lexsort((np.arange(len(host)), nodes.start_us[host], of_kind, step))
    change = np.diff(of_kind[order], prepend=-1) != 0
    change |= np.diff(step[order], prepend=-2) != 0
    begun = np.maximum.accumulate(np.where(change, np.arange(len(host)), 0))
    nth = np.empty(len(host), np.int64)
    nth[order] = np.arange(len(host)) - begun
    return [_classes([of_kind, nth]), of_kind, _classes(where), np.zeros(len(host), np.int64)]


def _classes(columns: list[Ints]) -> Ints:
    """Per row of equal `columns`, one number."""
    return np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)[1].reshape(-1)


def _mean_of_other_steps(group: Ints, step: Ints, duration_us: Floats, counts: Mask) -> Floats:
    """Per host node the mean duration of its group in the other steps that count; nan for none."""
    weight = counts[step].astype(np.float64)
    own = _classes([group, step])
    number, total_us = (
        np.bincount(group, each)[group] - np.bincount(own, each)[own]
        for each in (weight, weight * duration_us)
    )
    means: Floats = np.where(number > 0, np.maximum(total_us, 0.0) / np.maximum(number, 1), np.nan)
    return means


@dataclass(frozen=True)
class NaivePredictions:
    """`[rank, step]`, microseconds; nan where nothing can be said."""

    mean_us: Floats
    """The mean of the other steady steps."""
    mean_gpu_us: Floats
    """The same, and by how much longer the device was active in the step than in the mean of
    those; nan for a rank without device work."""
    last_us: Floats
    """The steady step before it."""


def naive_predictions(measured: Timeline, steady: Ints) -> NaivePredictions:
    """Naive predictions of every step of a measured trace, from its `steady` steps."""
    graph = measured.graph
    step_us = by_rank_and_step(graph, measured.step_us)
    active_us = np.zeros(len(graph.marks.name))
    for rank in ranks_of(graph):
        device = DeviceWork.of(measured, rank)
        for mark in np.flatnonzero(graph.marks.rank == rank).tolist():
            active_us[mark] = account(device, *step_bounds(measured, mark)).gpu_active_us
    active_us = by_rank_and_step(graph, active_us)
    with_device = active_us.any(axis=1, keepdims=True)
    before = np.searchsorted(steady, np.arange(step_us.shape[1])) - 1
    last_us = np.where(before >= 0, step_us[:, np.append(steady, 0)[before]], np.nan)
    mean_us = _mean_of_others(step_us, steady)
    more_us = active_us - _mean_of_others(active_us, steady)
    mean_gpu_us = np.where(with_device, np.maximum(mean_us + more_us, 0), np.nan)
    return NaivePredictions(mean_us, mean_gpu_us, last_us)


def _mean_of_others(values: Floats, steady: Ints) -> Floats:
    """Per rank and step, the mean of the steady steps but the step itself."""
    own = np.where(np.isin(np.arange(values.shape[1]), steady), values, 0.0)
    count = len(steady) - np.isin(np.arange(values.shape[1]), steady)
    total = own.sum(axis=1, keepdims=True) - own
    means: Floats = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return means
