"""A replay that cannot echo what it predicts: host costs of other steps; naive predictions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isnan

import numpy as np

from perfmodel.arrays import Floats, Ints, Mask
from perfmodel.graph.kinds import Scope
from perfmodel.graph.types import ExecutionGraph
from perfmodel.timeline.idle import DeviceWork, account
from perfmodel.timeline.schedule import Timeline, schedule
from perfmodel.timeline.steps import by_rank_and_step, ranks_of, step_bounds
from perfmodel.trace.columns import NONE


def left_out_step_us(graph: ExecutionGraph, duration_us: Floats, steady: Ints) -> Floats:
    """Per row of `graph.marks`: the step's duration with its host costs taken from the others.

    Device durations stay the step's own. `steady` are the step indices whose costs count (warm-up
    and outliers do not teach). A step with no other to learn from is nan.
    """
    return LeaveOneOutReplay(graph).step_us(duration_us, steady)


class LeaveOneOutReplay:
    """Steps whose host costs are taken from other ones: what every replay of a graph shares.

    Where only the steps `held` are asked for, what they move is kept from one replay to the next.
    """

    def __init__(self, graph: ExecutionGraph, held: Ints | None = None) -> None:
        self._graph = graph
        self._steps = len(graph.marks.name) // max(len(np.unique(graph.marks.rank)), 1)
        step_of = step_of_nodes(graph)
        host = np.flatnonzero((graph.nodes_.scope == Scope.HOST) & (step_of >= 0))
        self._host = host[np.argsort(step_of[host], kind="stable")]
        self._step = step_of[self._host]
        self._first = np.searchsorted(self._step, np.arange(self._steps + 1)).tolist()
        groups = (_groups(graph, self._host, self._step, level) for level in range(3))
        self._groups = [*groups, np.zeros(len(host), np.int64)]
        self._held = None
        if held is not None:
            self._held = {step: nodes for step, nodes in self._reached() if step in held}

    def _reached(self) -> Iterator[tuple[int, Ints]]:
        return enumerate(reached_nodes(self._graph, self._host, self._step, self._steps))

    def step_us(self, duration_us: Floats, steady: Ints, only: int | None = None) -> Floats:
        """As `left_out_step_us`; every step but `only`, where that is given, is nan."""
        teaches = np.isin(np.arange(self._steps), steady)
        means_us = _mean_of_other_steps(self._groups, duration_us[self._host], self._first, teaches)
        times_us = np.full(len(self._graph.marks.name), np.nan)
        replay = Replay(self._graph, duration_us)
        for step, reached in self._reached() if self._held is None else self._held.items():
            others = teaches.sum() - teaches[step]
            if others and only in (None, step):
                own = slice(self._first[step], self._first[step + 1])
                of_step = slice(step, None, self._steps)
                times_us[of_step] = replay.step_us(self._host[own], means_us[own], reached, of_step)
        return times_us


def reached_nodes(graph: ExecutionGraph, host: Ints, step: Ints, steps: int) -> Iterator[Ints]:
    """Per step, in the order of the graph: the nodes through which its host nodes move its bounds.

    They are after a host node of this step or a later one and before a bound of this step or an
    earlier one: few nodes are that of many steps.
    """
    first, by_target = graph.predecessors
    source, bounds = graph.edges_.source[by_target].tolist(), first.tolist()
    begun, ended = np.full(len(graph), NONE), np.full(len(graph), steps)
    begun[host] = step
    for marks in (graph.marks.start, graph.marks.end):
        ended[marks] = np.arange(len(marks)) % steps
    latest, earliest, order = begun.tolist(), ended.tolist(), graph.order.tolist()
    for node in order:
        for before in source[bounds[node] : bounds[node + 1]]:
            if latest[before] > latest[node]:
                latest[node] = latest[before]
    for node in reversed(order):
        for before in source[bounds[node] : bounds[node + 1]]:
            if earliest[node] < earliest[before]:
                earliest[before] = earliest[node]
    until, since = np.array(latest)[graph.order], np.array(earliest)[graph.order]
    by_step = np.argsort(since, kind="stable")
    enter = np.searchsorted(since[by_step], np.arange(steps + 1))
    places = np.zeros(0, np.int64)
    for at in range(steps):
        places = np.concatenate([places, by_step[enter[at] : enter[at + 1]]])
        places = np.sort(places[until[places] >= at])
        yield graph.order[places]


class Replay:
    """A schedule of which a few nodes are replaced: only what they move is scheduled again."""

    def __init__(self, graph: ExecutionGraph, duration_us: Floats) -> None:
        first, by_target = graph.predecessors
        edges = graph.edges_
        self._graph = graph
        self._first, self._source = first.tolist(), edges.source[by_target].tolist()
        self._lag_us = edges.lag_us[by_target].tolist()
        self._overlap_frac = edges.overlap_frac[by_target].tolist()
        self._release_us, self._taken_us = graph.nodes_.release_us.tolist(), duration_us.tolist()
        self._end_us = schedule(graph, duration_us).end_us.tolist()

    def step_us(self, replaced: Ints, taken_us: Floats, reached: Ints, marks: slice) -> Floats:
        """Durations of `marks` where the nodes `replaced` take `taken_us`, which moves no others
        that these depend on than those `reached`, in the order of the graph."""
        end_us, taken = self._end_us, self._taken_us
        lag_us, overlap = self._lag_us, self._overlap_frac
        nodes, rows = reached.tolist(), replaced.tolist()
        before = [end_us[node] for node in nodes], [taken[row] for row in rows]
        for row, us in zip(rows, taken_us.tolist(), strict=True):
            taken[row] = us
        for node in nodes:
            begin = self._release_us[node]
            for edge in range(self._first[node], self._first[node + 1]):
                source = self._source[edge]
                ready = end_us[source] + (lag_us[edge] - overlap[edge] * taken[source])
                if ready > begin:
                    begin = ready
            end_us[node] = begin + taken[node]
        bounds = self._graph.marks
        found = [
            end_us[end] - end_us[start]
            for start, end in zip(bounds.start[marks], bounds.end[marks], strict=True)
        ]
        for node, us in zip(nodes, before[0], strict=True):
            end_us[node] = us
        for row, us in zip(rows, before[1], strict=True):
            taken[row] = us
        return np.array(found)


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
