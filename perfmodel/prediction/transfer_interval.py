"""The interval of a step that was transferred: its classes of work, each off as ratios are."""

from __future__ import annotations

import numpy as np

from perfmodel.attribution.path import Walker, critical_path
from perfmodel.attribution.steps import steady_steps
from perfmodel.graph.kinds import Scope
from perfmodel.graph.types import ExecutionGraph
from perfmodel.ops.families import classes_of_kernels
from perfmodel.prediction.interval import COVERED_FRAC, HOST, MOST_NODES, draws_of
from perfmodel.timeline.schedule import Timeline, measured, step_us_of_many
from perfmodel.trace.columns import NONE, Floats, Ints
from perfmodel.transfer import HOST_SPREAD, RATIO_SPREAD


def transfer_interval(timeline: Timeline, rank: int) -> tuple[float, float]:
    """90 % interval of a rank's median step, microseconds, from those of ratios between devices.

    A class of kernels is off by one factor on a pair of devices, so each draw moves all of a class
    together, classes and the host by themselves. Every draw is scheduled; of graphs above
    `MOST_NODES` the critical path of the median step alone is drawn.
    """
    graph = timeline.graph
    marks = np.flatnonzero(graph.marks.rank == rank)[steady_steps(measured(graph))]
    step_us = timeline.step_us[marks]
    middle_us = float(np.median(step_us))
    taken = timeline.end_us - timeline.start_us
    if len(graph) > MOST_NODES:
        mark = int(marks[np.argsort(step_us)[len(marks) // 2]])
        path = critical_path(timeline, mark, Walker.of(timeline))
        nodes = np.array([piece.node if piece.edge == NONE else NONE for piece in path])
        pieces_us = np.array([piece.end_us - piece.start_us for piece in path])
        steps = (pieces_us[:, None] * _factors(graph, nodes)).sum(axis=0)
    else:
        factor = _factors(graph, np.arange(len(graph)))
        steps = np.median(step_us_of_many(graph, taken[:, None] * factor)[marks], axis=0)
    low, high = np.quantile(steps, [(1 - COVERED_FRAC) / 2, (1 + COVERED_FRAC) / 2])
    return min(float(low), middle_us), max(float(high), middle_us)


def _factors(graph: ExecutionGraph, nodes: Ints) -> Floats:
    """`[nodes, draws]`: by how much each draw multiplies what a node takes; -1 is no node."""
    spread = {**RATIO_SPREAD, HOST: HOST_SPREAD, "": 1.0}
    names = list(spread)
    table = np.stack([spread[name] ** draws_of(name) for name in names])
    kind = np.full(len(graph), names.index(""))
    device = np.flatnonzero(graph.on_device)
    labels = [graph.labels[node] for node in device.tolist()]
    kind[device] = [names.index(name) for name in classes_of_kernels(labels)]
    kind[np.isin(graph.nodes_.scope, (Scope.HOST, Scope.ALLOCATOR))] = names.index(HOST)
    found: Floats = table[np.where(nodes == NONE, names.index(""), kind[nodes])]
    return found
