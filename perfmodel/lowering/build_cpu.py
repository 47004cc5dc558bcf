"""Pieces of a CPU step to an execution graph: one host thread, one after the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfmodel.graph.kinds import Cause, EdgeKind, NodeKind, Scope
from perfmodel.graph.types import Edges, ExecutionGraph, Nodes, StepMarks
from perfmodel.lowering.draft import Built
from perfmodel.lowering.piece import Piece
from perfmodel.ops.spec import Floats
from perfmodel.trace.columns import NONE

_HOST = (NodeKind.HOST, Cause.HOST_OP_WITHOUT_LAUNCH, Scope.HOST)
_COLLECTIVE = (NodeKind.COLLECTIVE, Cause.COMMUNICATION, Scope.COMM)


def cpu_graph(pieces: Sequence[Piece], duration_us: Floats, rank: int = 0) -> Built:
    """The graph of `pieces` (of `cpu_pieces`) with their durations: a chain between two marks.

    The threads that an operator works with are part of its duration; collectives are waited for.
    """
    count = len(pieces) + 2
    what = [_COLLECTIVE if piece.kind == "collective" else _HOST for piece in pieces]
    marks = (NodeKind.MARK, Cause.END_OF_STEP, Scope.NONE)
    kind, cause, scope = np.array([marks, *what, marks], np.int64).T
    zeros = np.zeros(count, np.int64)
    nodes = Nodes(
        kind=kind,
        cause=cause,
        scope=scope,
        rank=zeros + rank,
        resource=zeros,
        row=zeros + NONE,
        start_us=zeros.astype(np.float64),
        duration_us=np.concatenate([[0.0], duration_us, [0.0]]),
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
    labels = ("step 0", *(piece.op for piece in pieces), "end of step 0")
    bounds = StepMarks(zeros[:1] + rank, ("step 0",), zeros[:1], zeros[:1] + count - 1)
    graph = ExecutionGraph(nodes, edges, bounds, (f"{rank}/main",), labels, ("",) * count)
    return Built(graph, np.concatenate([[NONE], np.arange(len(pieces)), [NONE]]))
