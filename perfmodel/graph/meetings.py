"""Which collective of one rank is which of another: by process group, order and time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.errors import TraceError
from perfmodel.graph.kinds import EdgeKind, NodeKind
from perfmodel.graph.types import ExecutionGraph
from perfmodel.trace.columns import Floats, Ints, codes

SAME_CLOCK_US = 1000.0
"""Clocks that differ by less are one clock: ranks of one host, or hosts kept in time."""
MEETING_US = 100.0
"""Ends of one collective on several ranks spread by up to about this much."""


@dataclass(frozen=True)
class Meeting:
    """The collectives of one process group: `nodes[c, i]` is the node of collective `c` in the
    graph of the rank at index `ranks[i]`."""

    ranks: Ints
    nodes: Ints


def find_meetings(
    graphs: list[ExecutionGraph],
    shift_us: Floats,
    wheres: list[str],
    *,
    whole: bool = False,
) -> list[Meeting]:
    """Match the collectives of every process group that two or more of the ranks recorded.

    `shift_us` is what the files say to add to each rank's clock. Ranks begin and end recording at
    different times, so sequences are laid side by side where their ends fit; where several ways
    fit (equal steps), the one on the files' clocks counts, else the one counted from the last.
    `whole`: nothing is missing at either end, and equal sequences meet one by one.
    Raises `TraceError` where the names of a group's collectives nowhere fit.
    """
    found = [_by_group(graph) for graph in graphs]
    meetings = []
    for group in sorted({name for groups in found for name in groups}):
        ranks = [index for index, groups in enumerate(found) if group in groups]
        if len(ranks) < 2:
            continue
        sequences = [found[r][group] for r in ranks]
        equal = whole and len({tuple(_labels(graphs[r], found[r][group])) for r in ranks}) == 1
        if equal:
            meetings.append(Meeting(np.array(ranks), np.stack(sequences, axis=1)))
        else:
            meetings.append(_match(sequences, ranks, graphs, shift_us, wheres))
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


def _match(
    sequences: list[Ints],
    ranks: list[int],
    graphs: list[ExecutionGraph],
    shift_us: Floats,
    wheres: list[str],
) -> Meeting:
    code: dict[str, int] = {}
    names, ends = [], []
    for nodes, rank in zip(sequences, ranks, strict=True):
        names.append(codes((graphs[rank].labels[node] for node in nodes.tolist()), code))
        ends.append(graphs[rank].nodes_.end_us[nodes] + shift_us[rank])
    ahead = [0]
    for other in range(1, len(ranks)):
        lag = _lag(names[0], names[other], ends[0], ends[other])
        if lag is None:
            raise _never(sequences, ranks, graphs, wheres, other)
        ahead.append(lag)
    first = max(-lag for lag in ahead)
    last = min(len(nodes) - lag for nodes, lag in zip(sequences, ahead, strict=True))
    last = max(first, last)
    columns = [nodes[first + lag : last + lag] for nodes, lag in zip(sequences, ahead, strict=True)]
    return Meeting(np.array(ranks), np.stack(columns, axis=1))


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
    tight = {lag: off for lag, (spread, off) in fits.items() if spread <= tightest + MEETING_US}
    closest = min(tight, key=lambda lag: tight[lag])
    if tight[closest] <= SAME_CLOCK_US or from_last not in tight:
        return closest
    return from_last


def _never(
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
