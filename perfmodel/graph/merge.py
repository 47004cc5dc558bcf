"""The graphs of several ranks as one, in which collectives meet.

A collective ends for all ranks together, its transfer after the last of them has arrived. Waiting
is not given: each rank's arrival follows from its own graph.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from perfmodel.arrays import Floats, Ints
from perfmodel.errors import TraceError
from perfmodel.graph.data import without_cycles
from perfmodel.graph.kinds import Cause, EdgeKind, NodeKind, Scope
from perfmodel.graph.types import CarriedEdges, Edges, ExecutionGraph, Nodes, StepMarks
from perfmodel.trace.columns import NONE, text_codes

SAME_CLOCK_US = 1000.0
"""Clocks that differ by less are one clock: ranks of one host, or hosts kept in time."""
MAX_END_SPREAD_US = 100.0
"""Ends of one collective on several ranks spread by up to about this much."""


@dataclass(frozen=True)
class MatchedCollectives:
    """The collectives of one process group: `nodes[c, i]` is the node of collective `c` in the
    graph of the rank at index `ranks[i]`."""

    ranks: Ints
    nodes: Ints


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
    result = [_by_group(graph) for graph in graphs]
    meetings = []
    for group in sorted({name for groups in result for name in groups}):
        ranks = [index for index, groups in enumerate(result) if group in groups]
        if len(ranks) < 2:
            continue
        sequences = [result[r][group] for r in ranks]
        equal = whole and len({tuple(_labels(graphs[r], result[r][group])) for r in ranks}) == 1
        if equal:
            meetings.append(MatchedCollectives(np.array(ranks), np.stack(sequences, axis=1)))
        else:
            meetings.append(_match_group(sequences, ranks, graphs, shift_us, wheres))
    return [meeting for meeting in meetings if len(meeting.nodes)]


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


def _labels(graph: ExecutionGraph, nodes: Ints) -> list[str]:
    return [graph.labels[node] for node in nodes.tolist()]


def _match_group(
    sequences: list[Ints],
    ranks: list[int],
    graphs: list[ExecutionGraph],
    shift_us: Floats,
    wheres: list[str],
) -> MatchedCollectives:
    code: dict[str, int] = {}
    names, ends = [], []
    for nodes, rank in zip(sequences, ranks, strict=True):
        names.append(text_codes((graphs[rank].labels[node] for node in nodes.tolist()), code))
        ends.append(graphs[rank].nodes_.end_us[nodes] + shift_us[rank])
    ahead = [0]
    for other in range(1, len(ranks)):
        lag = _lag(names[0], names[other], ends[0], ends[other])
        if lag is None:
            raise _mismatch_error(sequences, ranks, graphs, wheres, other)
        ahead.append(lag)
    first = max(-lag for lag in ahead)
    last = min(len(nodes) - lag for nodes, lag in zip(sequences, ahead, strict=True))
    last = max(first, last)
    columns = [nodes[first + lag : last + lag] for nodes, lag in zip(sequences, ahead, strict=True)]
    return MatchedCollectives(np.array(ranks), np.stack(columns, axis=1))


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


def _mismatch_error(
    sequences: list[Ints],
    ranks: list[int],
    graphs: list[ExecutionGraph],
    wheres: list[str],
    other: int,
) -> TraceError:
    """The first place, counted from the last, where two ranks come to different collectives."""
    labels = [
        [graphs[ranks[i]].labels[node] for node in sequences[i][::-1].tolist()] for i in (0, other)
    ]
    one, two = next(
        ((a, b) for a, b in zip(*labels, strict=False) if a != b), (labels[0][0], labels[1][0])
    )
    return TraceError(
        f"{wheres[ranks[other]]}: comes to {two[:60]!r} where {wheres[ranks[0]]} comes to "
        f"{one[:60]!r}: these collectives never meet"
    )


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
    nodes = _stack_nodes(graphs, aligned)
    repeating = [graph.carried for graph in graphs if graph.carried is not None]
    carried = None
    if len(repeating) == len(graphs):
        edges = _stack_edges([each.edges for each in repeating], offset)
        carried = CarriedEdges(edges, np.concatenate([each.distance for each in repeating]))
    merged = ExecutionGraph(
        nodes,
        _stack_edges([graph.edges_ for graph in graphs], offset),
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
        {
            int(node + o): name
            for g, o in zip(graphs, offset, strict=True)
            for node, name in g.process_groups.items()
        },
        tuple(note for graph in graphs for note in graph.notes),
        sum(graph.left_out for graph in graphs),
        carried=carried,
    )
    for meeting in meetings:
        matched = meeting.nodes + offset[meeting.ranks]
        longest = np.broadcast_to(
            merged.nodes_.duration_us[matched].max(axis=1, keepdims=True), matched.shape
        )
        merged = _split_at_meeting(
            merged, matched, longest if modelled else _transfer_us(merged, matched)
        )
    return without_cycles(merged, ", ".join(wheres))


def _aligned(
    graphs: list[ExecutionGraph], meetings: list[MatchedCollectives], shift_us: Floats
) -> Floats:
    """`shift_us` corrected so that collectives end at one time, in the median over them."""
    lateness: list[list[Floats]] = [[] for _ in graphs]
    for meeting in meetings:
        ends = np.stack(
            [
                graphs[r].nodes_.end_us[meeting.nodes[:, i]] + shift_us[r]
                for i, r in enumerate(meeting.ranks.tolist())
            ],
            axis=1,
        )
        late = ends - np.median(ends, axis=1, keepdims=True)
        for i, r in enumerate(meeting.ranks.tolist()):
            lateness[r].append(late[:, i])
    corrections = [float(np.median(np.concatenate(late))) if late else 0.0 for late in lateness]
    aligned: Floats = shift_us - np.array(corrections)
    return aligned


def _stack_nodes(graphs: list[ExecutionGraph], shift_us: Floats) -> Nodes:
    resources = np.cumsum([0, *(len(graph.resources) for graph in graphs)])[:-1]
    shifts = {"start_us": shift_us, "release_us": shift_us, "resource": resources}
    none = np.zeros(len(graphs), np.int64)
    return Nodes(
        **{
            name: np.concatenate(
                [
                    getattr(graph.nodes_, name) + shift
                    for graph, shift in zip(graphs, shifts.get(name, none), strict=True)
                ]
            )
            for name in (column.name for column in fields(Nodes))
        }
    )


def _stack_edges(edges: list[Edges], offset: Ints) -> Edges:
    first, *others = (
        replace(each, source=each.source + o, target=each.target + o)
        for each, o in zip(edges, offset, strict=True)
    )
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
        scope=Scope.NONE,
        rank=nodes.rank[first],
        resource=nodes.resource[first],
        row=NONE,
        start_us=(nodes.end_us[matched] - transfer_us).max(axis=1),
        duration_us=0.0,
        release_us=-np.inf,
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
        release_us=-np.inf,
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
