"""The graphs of several ranks as one, in which collectives meet.

A collective ends for all ranks together, its transfer after the last of them has arrived. Waiting
is not given: each rank's arrival follows from its own graph.
"""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np

from perfmodel.errors import TraceError
from perfmodel.graph.kinds import Cause, EdgeKind, NodeKind, Scope
from perfmodel.graph.types import Edges, ExecutionGraph, Nodes, StepMarks
from perfmodel.trace.columns import NONE, Floats, Ints


def merge(graphs: list[ExecutionGraph], origins_ns: list[int], wheres: list[str]) -> ExecutionGraph:
    """One graph of all ranks on one clock.

    Collectives are matched by order, counted from the last (ranks begin recording at different
    times). Clocks are aligned by the ends of the matched collectives. Raises `TraceError` when two
    ranks disagree on which collective comes next, and when their steps differ in number.
    """
    counts = [len(graph.marks.name) for graph in graphs]
    if len(set(counts)) > 1:
        other = next(i for i, count in enumerate(counts) if count != counts[0])
        raise TraceError(
            f"{wheres[other]}: has {counts[other]} steps, but {wheres[0]} has {counts[0]}: "
            "ranks of one job must be recorded for the same steps"
        )
    offset = np.cumsum([0, *(len(graph) for graph in graphs)])[:-1]
    matched = _match(graphs, wheres)
    nodes = _stack_nodes(graphs, _clock_shifts(graphs, matched, origins_ns))
    merged = ExecutionGraph(
        nodes,
        _stack_edges(graphs, offset),
        StepMarks(
            np.concatenate([g.marks.rank for g in graphs]),
            tuple(name for g in graphs for name in g.marks.name),
            np.concatenate([g.marks.start + o for g, o in zip(graphs, offset, strict=True)]),
            np.concatenate([g.marks.end + o for g, o in zip(graphs, offset, strict=True)]),
        ),
        tuple(name for g in graphs for name in g.resources),
        tuple(label for g in graphs for label in g.labels),
        tuple(text for g in graphs for text in g.annotations),
        max(graph.unknown for graph in graphs),
        sum(graph.left_out for graph in graphs),
    )
    return _meet(merged, matched + offset) if len(matched) else merged


def _match(graphs: list[ExecutionGraph], wheres: list[str]) -> Ints:
    """`[collective, rank]`: the node of each collective in the graph of each rank."""
    found = [_collectives(graph) for graph in graphs]
    shared = min(len(nodes) for nodes in found)
    matched = np.array([nodes[len(nodes) - shared :] for nodes in found], np.int64)
    matched = matched.reshape(len(graphs), shared).T
    for row in matched:
        names = [graph.labels[node] for graph, node in zip(graphs, row, strict=True)]
        for name, where in zip(names, wheres, strict=True):
            if name != names[0]:
                raise TraceError(
                    f"{where}: comes to {name[:60]!r} where {wheres[0]} comes to "
                    f"{names[0][:60]!r}: these collectives never meet"
                )
    return matched


def _collectives(graph: ExecutionGraph) -> Ints:
    """Collective nodes in the order of their issue: of a stream its own, of host threads that of
    the operators behind them (two threads may take them up the other way round)."""
    nodes = np.flatnonzero(graph.nodes_.kind == NodeKind.COLLECTIVE)
    issued_us = graph.nodes_.start_us.copy()
    behind = np.flatnonzero(graph.edges_.kind == EdgeKind.HOST_COLLECTIVE)
    issued_us[graph.edges_.target[behind]] = graph.nodes_.end_us[graph.edges_.source[behind]]
    return nodes[np.argsort(issued_us[nodes], kind="stable")]


def _clock_shifts(graphs: list[ExecutionGraph], matched: Ints, origins_ns: list[int]) -> Floats:
    """What to add to each rank's clock, so that collectives end at one time (in the median)."""
    shift = (np.array(origins_ns, np.int64) - min(origins_ns)) / 1e3
    if not len(matched):
        return shift
    columns = [g.nodes_.end_us[matched[:, r]] + shift[r] for r, g in enumerate(graphs)]
    ends = np.stack(columns, axis=1)
    behind: Floats = np.median(ends - np.median(ends, axis=1, keepdims=True), axis=0)
    return shift - behind


def _stack_nodes(graphs: list[ExecutionGraph], shift_us: Floats) -> Nodes:
    columns: dict[str, np.ndarray] = {}
    resources = np.cumsum([0, *(len(graph.resources) for graph in graphs)])[:-1]
    moved = {"start_us": shift_us, "release_us": shift_us, "resource": resources}
    for column in fields(Nodes):
        move = moved.get(column.name, np.zeros(len(graphs), np.int64))
        columns[column.name] = np.concatenate(
            [getattr(g.nodes_, column.name) + m for g, m in zip(graphs, move, strict=True)]
        )
    return Nodes(**columns)


def _stack_edges(graphs: list[ExecutionGraph], offset: Ints) -> Edges:
    columns: dict[str, np.ndarray] = {}
    for column in fields(Edges):
        move = offset if column.name in ("source", "target") else np.zeros(len(graphs), np.int64)
        columns[column.name] = np.concatenate(
            [getattr(g.edges_, column.name) + m for g, m in zip(graphs, move, strict=True)]
        )
    return Edges(**columns)


def _meet(graph: ExecutionGraph, matched: Ints) -> ExecutionGraph:
    """Split each matched collective in two: its arrival, and its transfer after the meeting.

    The transfer is the shortest of the ranks' durations: what is left of a rank's own is waiting.
    On host threads (Gloo) each rank ends for itself, after what it took since the last arrival.
    """
    nodes, edges, count = graph.nodes_, graph.edges_, len(graph)
    collectives, ranks = matched.shape
    arrive = matched.reshape(-1)
    shortest = nodes.duration_us[matched].min(axis=1, keepdims=True)
    last_arrival = nodes.start_us[matched].max(axis=1, keepdims=True)
    own = (nodes.end_us[matched] - last_arrival).clip(min=0)
    transfer_us = np.where(graph.on_device[matched], shortest, own)
    meeting = count + np.arange(collectives)
    transfer = count + collectives + np.arange(len(arrive))
    meeting_start = (nodes.end_us[matched] - transfer_us).max(axis=1)
    each = transfer_us.reshape(-1)
    first = matched[:, 0]

    def grow(column: np.ndarray, meetings: object, transfers: object) -> np.ndarray:
        return np.concatenate(
            [
                column,
                np.broadcast_to(np.asarray(meetings, column.dtype), collectives),
                np.broadcast_to(np.asarray(transfers, column.dtype), len(arrive)),
            ]
        )

    duration = nodes.duration_us.copy()
    duration[arrive] = 0.0
    scope = nodes.scope.copy()
    scope[arrive] = Scope.NONE
    grown = Nodes(
        kind=grow(nodes.kind, NodeKind.MARK, NodeKind.COLLECTIVE),
        cause=grow(nodes.cause, Cause.COLLECTIVE_WAIT, Cause.COMMUNICATION),
        scope=grow(scope, Scope.NONE, Scope.COMM),
        rank=grow(nodes.rank, nodes.rank[first], nodes.rank[arrive]),
        resource=grow(nodes.resource, nodes.resource[first], nodes.resource[arrive]),
        row=grow(nodes.row, NONE, nodes.row[arrive]),
        start_us=grow(nodes.start_us, meeting_start, nodes.end_us[arrive] - each),
        duration_us=grow(duration, 0.0, each),
        release_us=grow(nodes.release_us, -np.inf, -np.inf),
    )
    after = np.arange(count)
    after[arrive] = transfer
    to_meeting, from_meeting = np.repeat(meeting, ranks), np.repeat(meeting, ranks)
    new = len(arrive)
    return replace(
        graph,
        nodes_=grown,
        edges_=Edges(
            source=np.concatenate([after[edges.source], arrive, from_meeting]),
            target=np.concatenate([edges.target, to_meeting, transfer]),
            kind=np.concatenate([edges.kind, np.full(2 * new, EdgeKind.RENDEZVOUS)]),
            overlap_frac=np.concatenate([edges.overlap_frac, np.zeros(2 * new)]),
            lag_us=np.concatenate([edges.lag_us, np.zeros(2 * new)]),
        ),
        labels=graph.labels
        + tuple(graph.labels[node] for node in first)
        + tuple(graph.labels[node] for node in arrive),
        annotations=graph.annotations + ("",) * (collectives + new),
        arrivals=np.stack([transfer, arrive], axis=1),
    )
