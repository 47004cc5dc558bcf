"""The graph of a trace: those of several ranks as one, in which collectives meet.

A collective ends for all ranks together, its transfer after the last of them has arrived. Waiting
is not given: each rank's arrival follows from its own graph.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TypeAlias

import numpy as np

from perfmodel.base.arrays import Floats, Ints
from perfmodel.errors import TraceError
from perfmodel.timeline.graph.build import build_rank, with_measured_waits
from perfmodel.timeline.graph.kinds import Cause, EdgeKind, NodeKind, Scope
from perfmodel.timeline.graph.types import (
    CarriedEdges,
    Edges,
    ExecutionGraph,
    Nodes,
    StepMarks,
    acyclic,
)
from perfmodel.trace import Trace
from perfmodel.trace.columns import Strings


def build_graph(trace: Trace) -> ExecutionGraph:
    """The execution graph of a trace; where it has several ranks, their collectives meet.

    Raises `TraceError` when the trace holds no timed events, and when its ranks do not fit.
    """
    if not trace.ranks:
        raise TraceError(f"{trace.source}: an execution trace without timings: give a Kineto trace")
    for rank, links in trace.recorded.values():
        if not len(links.steps):
            raise TraceError(
                f"{rank.where}: holds no host or device events: nothing happened in it"
            )
    graphs = [with_measured_waits(build_rank(*each)) for each in trace.recorded.values()]
    if len(graphs) == 1:
        return graphs[0]
    return merge(graphs, [r.origin_ns for r in trace.ranks], [r.where for r in trace.ranks])


SAME_CLOCK_US = 1000.0
"""Clocks that differ by less are one clock: ranks of one host, or hosts kept in time."""
MAX_END_SPREAD_US = 100.0
"""Ends of one collective on several ranks spread by up to about this much."""

MatchedCollectives: TypeAlias = tuple[Ints, Ints]
"""Of one process group: the indices of the ranks, and `[collective, rank]` its node in the graph of
each."""


def match_collectives(
    graphs: list[ExecutionGraph], shift_us: Floats, wheres: list[str], *, whole: bool = False
) -> list[MatchedCollectives]:
    """Match the collectives of every process group that two or more of the ranks recorded.

    `shift_us` is what the files say to add to each rank's clock. Ranks begin and end recording at
    different times, so sequences are laid side by side where their ends fit; where several ways
    fit (equal steps), the one on the files' clocks counts, else the one counted from the last.
    `whole`: nothing is missing at either end, and equal sequences meet one by one.
    Raises `TraceError` where the names of a group's collectives nowhere fit.
    """
    by_group = [_by_group(graph) for graph in graphs]
    meetings = []
    for group in sorted({name for groups in by_group for name in groups}):
        ranks = [index for index, groups in enumerate(by_group) if group in groups]
        if len(ranks) < 2:
            continue
        sequences = [by_group[r][group] for r in ranks]
        labels = [
            [graphs[r].labels[node] for node in nodes.tolist()]
            for r, nodes in zip(ranks, sequences, strict=True)
        ]
        ahead = [0] * len(ranks)
        if not whole or any(each != labels[0] for each in labels):
            codes = Strings()
            names = [codes.of(each) for each in labels]
            ends = [
                graphs[r].nodes_.end_us[nodes] + shift_us[r]
                for r, nodes in zip(ranks, sequences, strict=True)
            ]
            for at in range(1, len(ranks)):
                lag = _lag(names[0], names[at], ends[0], ends[at])
                if lag is None:  # the first place, from the last, where they differ
                    pairs = list(zip(labels[0][::-1], labels[at][::-1], strict=False))
                    one, two = next(((a, b) for a, b in pairs if a != b), pairs[0])
                    here, there = wheres[ranks[at]], wheres[ranks[0]]
                    raise TraceError(
                        f"{here}: comes to {two[:60]!r} where {there} comes to {one[:60]!r}: "
                        "these collectives never meet"
                    )
                ahead[at] = lag
        first = max(-lag for lag in ahead)
        last = min(len(nodes) - lag for nodes, lag in zip(sequences, ahead, strict=True))
        if last > first:
            own = zip(sequences, ahead, strict=True)
            matched = np.stack([nodes[first + lag : last + lag] for nodes, lag in own], axis=1)
            meetings.append((np.array(ranks), matched))
    return meetings


def _by_group(graph: ExecutionGraph) -> dict[str, Ints]:
    """Collective nodes per process group, in the order of their issue: of a stream its own, of
    host threads that of the operators behind them (two threads may take them up either way)."""
    nodes = np.flatnonzero(graph.nodes_.kind == NodeKind.COLLECTIVE)
    issued_us = graph.nodes_.start_us.copy()
    behind = np.flatnonzero(graph.edges_.kind == EdgeKind.HOST_COLLECTIVE)
    issued_us[graph.edges_.target[behind]] = graph.nodes_.end_us[graph.edges_.source[behind]]
    nodes = nodes[np.argsort(issued_us[nodes], kind="stable")]
    names = np.array([graph.process_groups.get(node, "") for node in nodes.tolist()], dtype=object)
    return {str(name): nodes[names == name] for name in set(names.tolist())}


def _lag(names: Ints, others: Ints, ends: Floats, other_ends: Floats) -> int | None:
    """How many places later the other rank has the collectives of the first; None: nowhere fits."""
    from_last = len(others) - len(names)
    fits: dict[int, tuple[float, float]] = {}
    for lag in range(1 - len(names), len(others)):
        low, high = max(0, -lag), min(len(names), len(others) - lag)
        if 2 * (high - low) < min(len(names), len(others)):
            continue
        if (names[low:high] == others[low + lag : high + lag]).all():
            apart = other_ends[low + lag : high + lag] - ends[low:high]
            middle = float(np.median(apart))
            fits[lag] = float(np.median(np.abs(apart - middle))), abs(middle)
    if not fits:
        return None
    tightest = min(spread for spread, _ in fits.values())
    tight = {
        lag: off for lag, (spread, off) in fits.items() if spread <= tightest + MAX_END_SPREAD_US
    }
    closest = min(tight, key=lambda lag: tight[lag])
    if tight[closest] <= SAME_CLOCK_US or from_last not in tight:
        return closest
    return from_last


def merge(
    graphs: list[ExecutionGraph],
    origins_ns: list[int],
    wheres: list[str],
    *,
    modelled: bool = False,
) -> ExecutionGraph:
    """One graph of all ranks on one clock.

    Collectives are matched as `match_collectives` says, and clocks aligned by the ends of those
    that are. Where durations are `modelled`, no clock is moved, and a transfer takes the longest of
    its ranks' durations, which hold no waiting. Raises `TraceError` when two ranks disagree on
    which collective comes next, and when their steps differ in number; `GraphError` when they wait
    for one another in a circle.
    """
    counts = [len(graph.marks.name) for graph in graphs]
    if len(set(counts)) > 1:
        other = next(i for i, count in enumerate(counts) if count != counts[0])
        raise TraceError(
            f"{wheres[other]}: has {counts[other]} steps, but {wheres[0]} has {counts[0]}: "
            "ranks of one job must be recorded for the same steps"
        )
    offset = np.cumsum([0, *(len(graph) for graph in graphs)])[:-1]
    shift_us = (np.array(origins_ns, np.int64) - min(origins_ns)) / 1e3
    meetings = match_collectives(graphs, shift_us, wheres, whole=modelled)
    aligned = shift_us if modelled else _aligned(graphs, meetings, shift_us)
    repeating = [graph.carried for graph in graphs if graph.carried is not None]
    carried = None
    if len(repeating) == len(graphs):
        edges = _stack_edges([each.edges for each in repeating], offset)
        carried = CarriedEdges(edges, np.concatenate([each.distance for each in repeating]))
    shifted = list(zip(graphs, offset.tolist(), strict=True))
    merged = ExecutionGraph(
        _stack_nodes(graphs, aligned),
        _stack_edges([graph.edges_ for graph in graphs], offset),
        StepMarks(
            np.concatenate([g.marks.rank for g in graphs]),
            tuple(name for g in graphs for name in g.marks.name),
            np.concatenate([g.marks.start + o for g, o in shifted]),
            np.concatenate([g.marks.end + o for g, o in shifted]),
        ),
        tuple(name for g in graphs for name in g.resources),
        tuple(label for g in graphs for label in g.labels),
        tuple(text for g in graphs for text in g.annotations),
        max(graph.unknown for graph in graphs),
        {node + o: name for g, o in shifted for node, name in g.process_groups.items()},
        tuple(line for graph in graphs for line in graph.warnings),
        carried=carried,
    )
    for ranks, nodes in meetings:
        matched = nodes + offset[ranks]
        transfer_us = _transfer_us(merged, matched)
        if modelled:
            longest = merged.nodes_.duration_us[matched].max(axis=1, keepdims=True)
            transfer_us = np.broadcast_to(longest, matched.shape)
        merged = _split_at_meeting(merged, matched, transfer_us)
    return acyclic(merged, ", ".join(wheres))


def _aligned(
    graphs: list[ExecutionGraph], meetings: list[MatchedCollectives], shift_us: Floats
) -> Floats:
    """`shift_us` corrected so that collectives end at one time, in the median over them."""
    lateness: list[list[Floats]] = [[] for _ in graphs]
    for ranks, nodes in meetings:
        pairs = zip(ranks.tolist(), nodes.T, strict=True)
        ends_us = np.stack([graphs[r].nodes_.end_us[own] + shift_us[r] for r, own in pairs])
        for r, late in zip(ranks.tolist(), ends_us - np.median(ends_us, axis=0), strict=True):
            lateness[r].append(late)
    corrections = [float(np.median(np.concatenate(late))) if late else 0.0 for late in lateness]
    aligned: Floats = shift_us - np.array(corrections)
    return aligned


def _stack_nodes(graphs: list[ExecutionGraph], shift_us: Floats) -> Nodes:
    resources = np.cumsum([0, *(len(graph.resources) for graph in graphs)])[:-1]
    shifts = {"start_us": shift_us, "release_us": shift_us, "resource": resources}
    columns = {}
    for name in (column.name for column in fields(Nodes)):
        parts = [getattr(graph.nodes_, name) for graph in graphs]
        if name in shifts:
            parts = [part + by for part, by in zip(parts, shifts[name].tolist(), strict=True)]
        columns[name] = np.concatenate(parts)
    return Nodes(**columns)


def _stack_edges(edges: list[Edges], offset: Ints) -> Edges:
    first, *others = (each.shifted(by) for each, by in zip(edges, offset.tolist(), strict=True))
    return first.and_(*others)


def _transfer_us(graph: ExecutionGraph, matched: Ints) -> Floats:
    """What of each measured duration was transfer.

    The shortest of the ranks' durations: what is left of a rank's own is waiting. On host threads
    (Gloo) each rank ends for itself, after what it took since the last arrival.
    """
    nodes = graph.nodes_
    shortest = nodes.duration_us[matched].min(axis=1, keepdims=True)
    last_arrival = nodes.start_us[matched].max(axis=1, keepdims=True)
    since_last_us = (nodes.end_us[matched] - last_arrival).clip(min=0)
    transfer_us: Floats = np.where(graph.on_device[matched], shortest, since_last_us)
    return transfer_us


def _split_at_meeting(graph: ExecutionGraph, matched: Ints, transfer_us: Floats) -> ExecutionGraph:
    """Split each matched collective in two: its arrival, and its transfer after the meeting."""
    nodes, edges, count = graph.nodes_, graph.edges_, len(graph)
    collectives, ranks = matched.shape
    arrive = matched.reshape(-1)
    meeting = count + np.arange(collectives)
    transfer = count + collectives + np.arange(len(arrive))
    first = matched[:, 0]
    duration, scope = nodes.duration_us.copy(), nodes.scope.copy()
    duration[arrive] = 0.0
    scope[arrive] = Scope.NONE
    grown = replace(nodes, duration_us=duration, scope=scope).with_more(
        collectives,
        kind=NodeKind.MARK,
        cause=Cause.COLLECTIVE_WAIT,
        rank=nodes.rank[first],
        resource=nodes.resource[first],
        start_us=(nodes.end_us[matched] - transfer_us).max(axis=1),
    )
    grown = grown.with_more(
        len(arrive),
        kind=NodeKind.COLLECTIVE,
        cause=Cause.COMMUNICATION,
        scope=Scope.COMM,
        rank=nodes.rank[arrive],
        resource=nodes.resource[arrive],
        row=nodes.row[arrive],
        start_us=nodes.end_us[arrive] - transfer_us.reshape(-1),
        duration_us=transfer_us.reshape(-1),
    )
    after = np.arange(count)
    after[arrive] = transfer
    meets = np.repeat(meeting, ranks)
    pairs = np.stack([transfer, arrive], axis=1)
    carried = graph.carried
    if carried is not None:
        edges_ = replace(carried.edges, source=after[carried.edges.source])
        carried = replace(carried, edges=edges_)
    return replace(
        graph,
        carried=carried,
        nodes_=grown,
        edges_=replace(edges, source=after[edges.source]).and_(
            Edges.of(arrive, meets, EdgeKind.RENDEZVOUS),
            Edges.of(meets, transfer, EdgeKind.RENDEZVOUS),
        ),
        labels=(*graph.labels, *(graph.labels[node] for node in (*first, *arrive))),
        annotations=graph.annotations + ("",) * (collectives + len(arrive)),
        arrivals=pairs if graph.arrivals is None else np.concatenate([graph.arrivals, pairs]),
    )
