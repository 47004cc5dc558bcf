"""A graph small enough to know every number of it.

main      |T2 10-14|T4 14-16|T3 16-20|        |sync 28-30|
stream 7                         |kernel 18-28|
step      |10 .................................. 30|
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfmodel.timeline.graph.kinds import Cause, EdgeKind, NodeKind, Scope
from perfmodel.timeline.graph.types import Edges, ExecutionGraph, Nodes, StepMarks

KERNEL = "void at::native::<script>alert(1)</script>_kernel<float>(int)"
LABELS = ("aten::linear", "cudaLaunchKernel", "aten::linear", KERNEL, "cudaDeviceSynchronize")


def graph() -> ExecutionGraph:
    """Two resources, five pieces, one step from 10 us to 30 us."""
    kind = [
        NodeKind.HOST,
        NodeKind.LAUNCH,
        NodeKind.HOST,
        NodeKind.KERNEL,
        NodeKind.SYNC,
        NodeKind.MARK,
        NodeKind.MARK,
    ]
    cause = [
        Cause.HOST_T2,
        Cause.HOST_T4,
        Cause.HOST_T3,
        Cause.COMPUTE,
        Cause.BLOCKING_CALL,
        Cause.UNEXPLAINED,
        Cause.UNEXPLAINED,
    ]
    scope = [Scope.HOST] * 3 + [Scope.COMPUTE, Scope.HOST, Scope.NONE, Scope.NONE]
    edges = [
        (5, 0, EdgeKind.PROGRAM, 0.0),
        (0, 1, EdgeKind.PROGRAM, 0.0),
        (1, 2, EdgeKind.PROGRAM, 0.0),
        (2, 4, EdgeKind.PROGRAM, 0.0),
        (1, 3, EdgeKind.LAUNCH, 2.0),
        (3, 4, EdgeKind.HOST_SYNC, 0.0),
        (4, 6, EdgeKind.PROGRAM, 0.0),
    ]
    source, target, edge_kind, lag_us = (list(column) for column in zip(*edges, strict=True))
    nodes = Nodes(
        kind=np.array(kind, np.int64),
        cause=np.array(cause, np.int64),
        scope=np.array(scope, np.int64),
        rank=np.zeros(7, np.int64),
        resource=np.array([0, 0, 0, 1, 0, 0, 0], np.int64),
        row=np.full(7, -1, np.int64),
        start_us=np.array([10.0, 14.0, 16.0, 18.0, 28.0, 10.0, 30.0]),
        duration_us=np.array([4.0, 2.0, 4.0, 10.0, 2.0, 0.0, 0.0]),
        release_us=np.array([-np.inf] * 5 + [10.0, -np.inf]),
    )
    return ExecutionGraph(
        nodes_=nodes,
        edges_=Edges(
            source=np.array(source, np.int64),
            target=np.array(target, np.int64),
            kind=np.array(edge_kind, np.int64),
            overlap_frac=np.zeros(len(edges)),
            lag_us=np.array(lag_us),
        ),
        marks=StepMarks(np.zeros(1, np.int64), ("ProfilerStep#1",), np.array([5]), np.array([6])),
        resources=("0/main", "0/gpu0/stream7"),
        labels=(*LABELS, "", ""),
        annotations=("",) * 7,
    )


def relabelled(label: str) -> ExecutionGraph:
    """The graph with another name for its kernel."""
    labels = list(graph().labels)
    labels[3] = label
    return replace(graph(), labels=tuple(labels))
