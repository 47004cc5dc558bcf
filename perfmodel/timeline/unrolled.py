"""A step that carries edges to later ones, written out as several."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np

from perfmodel.graph.types import Edges, ExecutionGraph, Nodes, StepMarks
from perfmodel.trace.columns import Ints


def edges_of_steps(graph: ExecutionGraph) -> tuple[Edges, Ints]:
    """All edges, those that are carried last, and how many steps later the target of each is."""
    within = np.zeros(len(graph.edges_), np.int64)
    if graph.carried is None:
        return graph.edges_, within
    every = graph.edges_.and_(graph.carried.edges)
    return every, np.concatenate([within, graph.carried.distance])


def unrolled(graph: ExecutionGraph, steps: int) -> ExecutionGraph:
    """`graph` repeated `steps` times; the copies follow one another, each with all its nodes.

    A step after the first begins where the one before ended. What would come from before the first
    is left out. Marks are rank by rank, in order of steps.
    """
    count, marks = len(graph), graph.marks
    edges, distance = edges_of_steps(graph)
    step = np.repeat(np.arange(steps), len(edges))
    every = np.tile(np.arange(len(edges)), steps)
    kept = step + distance[every] < steps
    step, every = step[kept], every[kept]
    columns = {each.name: getattr(edges, each.name)[every] for each in fields(Edges)}
    columns["source"] = columns["source"] + step * count
    columns["target"] = columns["target"] + (step + distance[every]) * count
    nodes = Nodes(**{e.name: np.tile(getattr(graph.nodes_, e.name), steps) for e in fields(Nodes)})
    shift = np.repeat(np.arange(steps), count).astype(np.float64)
    span = float(np.ptp(graph.nodes_.start_us)) + 1.0 if count else 1.0
    ends = (marks.end[:, None] + np.arange(steps) * count).reshape(-1)
    begins = np.concatenate(
        [marks.start[:, None], ends.reshape(len(marks.end), steps)[:, :-1]], axis=1
    )
    return replace(
        graph,
        nodes_=replace(nodes, start_us=nodes.start_us + shift * span),
        edges_=Edges(**columns),
        marks=StepMarks(
            np.repeat(marks.rank, steps),
            tuple(name for name in marks.name for _ in range(steps)),
            begins.reshape(-1),
            ends,
        ),
        labels=graph.labels * steps,
        annotations=graph.annotations * steps,
        process_groups={
            node + k * count: name
            for node, name in graph.process_groups.items()
            for k in range(steps)
        },
        arrivals=None
        if graph.arrivals is None
        else np.concatenate([graph.arrivals + k * count for k in range(steps)]),
        carried=None,
    )
