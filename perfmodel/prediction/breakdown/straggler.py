"""Which rank the others wait for at their collectives, and why it comes late."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from perfmodel.base.arrays import Floats, Ints, Mask, distinct
from perfmodel.ops.families import family_of_kernel
from perfmodel.ops.spec import OPS
from perfmodel.timeline.critical_path import PathWalker
from perfmodel.timeline.graph.kinds import Cause, EdgeKind, Scope
from perfmodel.timeline.graph.types import ExecutionGraph
from perfmodel.timeline.idle import interval_union
from perfmodel.timeline.schedule import Timeline, by_rank_and_step, measured, steady_steps

HOST, DATA_LOADING, LOOKUPS, KERNELS, COPIES, LINK, STARTS_LATE, OTHER = (
    *("host", "data_loading", "lookups", "kernels", "copies", "link", "starts_late", "other"),
)
"""Why a rank comes late; `link`: exchanges that not all ranks take part in."""
_CAUSE = {
    **dict.fromkeys(
        (
            *(Cause.HOST_T1, Cause.HOST_T2, Cause.HOST_T3, Cause.HOST_T4, Cause.HOST_T5),
            *(Cause.HOST_OP_WITHOUT_LAUNCH, Cause.ALLOCATOR),
        ),
        HOST,
    ),
    Cause.DATA_LOADING: DATA_LOADING,
    Cause.COMPUTE: KERNELS,
    Cause.MEMCPY: COPIES,
    Cause.COMMUNICATION: LINK,
    Cause.BEFORE_WINDOW: STARTS_LATE,
}


@dataclass(frozen=True)
class RankWaiting:
    """What ranks spend at the collectives where they meet, microseconds per step.

    `transfer_us` and `waiting_us` by rank; `held_up_us` by rank: how long all others together wait
    for it; `late_us` by cause: how much later than the mean of the others the one comes that holds
    up most.
    """

    transfer_us: dict[int, float]
    waiting_us: dict[int, float]
    held_up_us: dict[int, float]
    late_us: dict[str, float]

    @property
    def straggler(self) -> int:
        """The rank that holds the others up most."""
        return max(self.held_up_us, key=lambda rank: self.held_up_us[rank])

    @property
    def cause(self) -> str:
        """Where most of the straggler's delay comes from; `other` where nothing is known."""
        known = {cause: us for cause, us in self.late_us.items() if cause != OTHER and us > 0}
        return max(known, key=lambda cause: known[cause], default=OTHER)

    def to_dict(self) -> dict[str, Any]:
        return {
            "rank": self.straggler,
            "cause": self.cause,
            "held_up_us": round(self.held_up_us[self.straggler], 4),
            "late_us": {
                cause: round(us, 4)
                for cause, us in sorted(self.late_us.items(), key=lambda item: -item[1])
            },
        }


class _Meeting(NamedTuple):
    """One collective: the ranks' arrivals and transfers, and when the one before it was over."""

    arrival: Ints
    transfer: Ints
    since_us: float


def rank_waiting(timeline: Timeline, walker: PathWalker | None = None) -> RankWaiting | None:
    """Transfer, waiting and the straggler over the steady steps; None where no ranks meet.

    The straggler is the rank that the others wait for most, all collectives together. Its delay is
    where its way from the collective before differs from the mean of theirs: host, data loading,
    lookups, other kernels, copies, a link that only it uses, or a recording that begins late. Work
    on the device counts as far as the straggler has more of it: the others may have done theirs
    while they waited (`other`).
    """
    graph, nodes = timeline.graph, timeline.graph.nodes_
    steady = steady_steps(measured(graph))
    begun = by_rank_and_step(graph, timeline.end_us[graph.marks.start])[:, steady].min(axis=0)
    over = by_rank_and_step(graph, timeline.end_us[graph.marks.end])[:, steady].max(axis=0)
    low_us, high_us = interval_union(begun, over)

    def counts(time_us: Floats) -> Mask:
        """Which times lie in one of the steady steps."""
        at = np.searchsorted(low_us, time_us, side="right") - 1
        result: Mask = (at >= 0) & (time_us < high_us[at])
        return result

    meetings = _meetings(timeline, float(low_us[0])) if len(low_us) else []
    begun_us = [timeline.start_us[one.transfer].min() for one in meetings]
    meetings = [meetings[at] for at in np.flatnonzero(counts(np.array(begun_us))).tolist()]
    if not meetings:
        return None
    steps = max(len(steady), 1)
    ranks = sorted({int(r) for one in meetings for r in nodes.rank[one.arrival]})
    transfer_us, waiting_us, held_up_us = (dict.fromkeys(ranks, 0.0) for _ in range(3))
    for one in meetings:
        arrived = timeline.start_us[one.arrival]
        begun, over = timeline.start_us[one.transfer], timeline.end_us[one.transfer]
        present = nodes.rank[one.arrival].tolist()
        for at, rank in enumerate(present):
            transfer_us[rank] += float(over[at] - begun[at]) / steps
            waiting_us[rank] += float(begun[at] - arrived[at]) / steps
        last = int(np.argmax(arrived))
        held_up_us[present[last]] += float((arrived[last] - arrived).sum()) / steps
    straggler = max(ranks, key=lambda rank: held_up_us[rank])
    late_us = _late_us(timeline, meetings, straggler, walker or PathWalker(timeline))
    # How much more its device does than the others' mean bounds what its device makes it late by.
    taken_us, excess_us = timeline.end_us - timeline.start_us, defaultdict[str, float](float)
    weight = np.where(nodes.rank == straggler, 1.0, -1.0 / (len(distinct(graph.marks.rank)) - 1))
    chosen = counts(timeline.start_us) & np.isin(nodes.scope, (Scope.COMPUTE, Scope.MEMCPY))
    for node in np.flatnonzero(chosen).tolist():
        cause = _cause_of(graph, node, int(nodes.cause[node]))
        excess_us[cause] += float(weight[node] * taken_us[node])
    for cause in (KERNELS, LOOKUPS, COPIES):
        shifted_us = late_us[cause] - min(late_us[cause], max(excess_us[cause], 0.0))
        late_us[cause] -= shifted_us
        late_us[OTHER] += shifted_us
    mean_late_us = {cause: us / steps for cause, us in late_us.items()}
    return RankWaiting(transfer_us, waiting_us, held_up_us, mean_late_us)


def _meetings(timeline: Timeline, since_us: float) -> list[_Meeting]:
    """The collectives on devices, in order."""
    graph, edges = timeline.graph, timeline.graph.edges_
    if graph.arrivals is None:
        return []
    meets = np.full(len(graph), -1, np.int64)
    into = np.flatnonzero(edges.kind == EdgeKind.RENDEZVOUS)
    meets[edges.target[into]] = edges.source[into]
    transfer, arrival = graph.arrivals.T
    groups: dict[int, list[int]] = defaultdict(list)
    for at in np.lexsort((transfer, timeline.start_us[transfer])).tolist():
        groups[int(meets[transfer[at]])].append(at)
    result = []
    for rows in groups.values():
        members = np.array(rows)
        result.append(_Meeting(arrival[members], transfer[members], since_us))
        since_us = max(since_us, float(timeline.end_us[transfer[members]].max()))
    return result


def _late_us(
    timeline: Timeline, meetings: list[_Meeting], straggler: int, walker: PathWalker
) -> defaultdict[str, float]:
    """By cause, the straggler's delay at the collectives that wait for it, in total."""
    graph = timeline.graph
    late_us: defaultdict[str, float] = defaultdict(float)
    for one in meetings:
        arrived = timeline.start_us[one.arrival]
        last = int(np.argmax(arrived))
        if int(graph.nodes_.rank[one.arrival[last]]) != straggler:
            continue
        for at, node in enumerate(one.arrival.tolist()):
            share = 1.0 if at == last else -1.0 / (len(arrived) - 1)
            from_us = max(float(arrived[at]), one.since_us)
            for piece in walker.walk(node, from_us, one.since_us):
                cause = _cause_of(graph, piece.node, piece.cause)
                late_us[cause] += share * (piece.end_us - piece.start_us)
    return late_us


def _cause_of(graph: ExecutionGraph, node: int, code: int) -> str:
    cause = _CAUSE.get(Cause(code), OTHER)
    return LOOKUPS if cause == KERNELS and _is_lookup(graph.labels[node]) else cause


@cache
def _is_lookup(label: str) -> bool:
    """Whether a kernel's name, or the op that was modelled, is of an embedding table."""
    modelled = OPS.get(label)
    return "embedding" in (family_of_kernel(label), modelled.family if modelled else "")
