"""What one would say of a step without a model: nulls that a prediction has to beat."""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan

import numpy as np

from perfmodel.attribution.accounting import account
from perfmodel.attribution.device import DeviceWork
from perfmodel.attribution.steps import by_rank, ranks_of, step_bounds
from perfmodel.timeline.schedule import Timeline
from perfmodel.trace.columns import Floats, Ints


@dataclass(frozen=True)
class Nulls:
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


def nulls(measured: Timeline, steady: Ints) -> Nulls:
    """The nulls of every step of a measured trace, from its `steady` steps."""
    graph = measured.graph
    step_us = by_rank(graph, measured.step_us)
    active_us = by_rank(graph, _active_us(measured))
    with_device = active_us.any(axis=1, keepdims=True)
    before = [steady[steady < step] for step in range(step_us.shape[1])]
    last = [step_us[:, own[-1]] if len(own) else np.full(len(step_us), np.nan) for own in before]
    mean_us = _mean_of_others(step_us, steady)
    more_us = active_us - _mean_of_others(active_us, steady)
    mean_gpu_us = np.where(with_device, np.maximum(mean_us + more_us, 0), np.nan)
    return Nulls(mean_us, mean_gpu_us, np.stack(last, axis=1))


def _mean_of_others(figure: Floats, steady: Ints) -> Floats:
    """Per rank and step, the mean of the steady steps but the step itself."""
    found = np.full_like(figure, np.nan)
    for step in range(figure.shape[1]):
        others = steady[steady != step]
        if len(others):
            found[:, step] = figure[:, others].mean(axis=1)
    return found


def _active_us(measured: Timeline) -> Floats:
    """Per row of the marks: how long anything ran on the rank's device in the step."""
    graph = measured.graph
    found = np.zeros(len(graph.marks.name))
    for rank in ranks_of(graph):
        device = DeviceWork.of(measured, rank)
        for mark in np.flatnonzero(graph.marks.rank == rank).tolist():
            found[mark] = account(device, *step_bounds(measured, mark)).gpu_active_us
    return found
