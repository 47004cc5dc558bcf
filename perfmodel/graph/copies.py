"""The graph of one rank as that of another with equal work."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfmodel.graph.types import ExecutionGraph


def as_rank(graph: ExecutionGraph, rank: int) -> ExecutionGraph:
    """`graph`, of a single rank, as if `rank` had run it."""
    nodes, marks = graph.nodes_, graph.marks
    return replace(
        graph,
        nodes_=replace(nodes, rank=np.full(len(nodes), rank, np.int64)),
        marks=replace(marks, rank=np.full(len(marks.name), rank, np.int64)),
        resources=tuple(f"{rank}/{name.partition('/')[2]}" for name in graph.resources),
    )
