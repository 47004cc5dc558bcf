"""Pieces of CPU steps to an execution graph: one host thread, one after the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfmodel.graph.kinds import Cause, EdgeKind, NodeKind, Scope
from perfmodel.graph.types import Edges, ExecutionGraph, Nodes, StepMarks
from perfmodel.lowering.draft import Built
from perfmodel.lowering.piece import Piece
from perfmodel.ops.spec import Floats
from perfmodel.trace.columns import NONE, Ints

_HOST = (NodeKind.HOST, Cause.HOST_OP_WITHOUT_LAUNCH, Scope.HOST)
_MARK = (NodeKind.MARK, Cause.END_OF_STEP, Scope.NONE)
_COLLECTIVE = (NodeKind.COLLECTIVE, Cause.COMMUNICATION, Scope.COMM)


def cpu_graph(steps: Sequence[Sequence[Piece]], duration_us: Floats, rank: int = 0) -> Built:
    """The graph of `steps` (of `cpu_steps`) with their pieces' durations: one chain, each step
    between two marks.

    The threads that an operator works with are part of its duration; collectives are waited for.
    """
    piece, bounds = _places(steps)
    pieces = [each for step in steps for each in step]
    count = len(piece)
    what = [
        _MARK if at == NONE else _COLLECTIVE if pieces[at].kind == "collective" else _HOST
        for at in piece.tolist()
    ]
    kind, cause, scope = np.array(what, np.int64).T
    zeros = np.zeros(count, np.int64)
    nodes = Nodes(
        kind=kind,
        cause=cause,
        scope=scope,
        rank=zeros + rank,
        resource=zeros,
        row=zeros + NONE,
        start_us=zeros.astype(np.float64),
        duration_us=np.where(piece == NONE, 0.0, np.append(duration_us, 0.0)[piece]),
        release_us=np.concatenate([[0.0], np.full(count - 1, -np.inf)]),
    )
    links = np.arange(count - 1)
    edges = Edges(
        links,
        links + 1,
        np.full(count - 1, int(EdgeKind.PROGRAM), np.int64),
        np.zeros(count - 1),
        np.zeros(count - 1),
    )
    names = tuple(f"step {number}" for number in range(len(steps)))
    labels = ["" if at == NONE else pieces[at].op for at in piece.tolist()]
    for name, (start, end) in zip(names, bounds.tolist(), strict=True):
        labels[start], labels[end] = name, f"end of {name}"
    marks = StepMarks(zeros[: len(steps)] + rank, names, bounds[:, 0], bounds[:, 1])
    graph = ExecutionGraph(nodes, edges, marks, (f"{rank}/main",), tuple(labels), ("",) * count)
    return Built(graph, piece)


def _places(steps: Sequence[Sequence[Piece]]) -> tuple[Ints, Ints]:
    """Per node its piece, or none for a mark; and per step its first and last node."""
    piece: list[int] = []
    bounds = []
    taken = 0
    for step in steps:
        start = len(piece)
        piece += [NONE, *range(taken, taken + len(step)), NONE]
        taken += len(step)
        bounds.append((start, len(piece) - 1))
    return np.array(piece, np.int64), np.array(bounds, np.int64)
