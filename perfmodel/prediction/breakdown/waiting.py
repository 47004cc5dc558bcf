"""What steps wait for: the rank that comes last to collectives, and why; what was not recorded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from typing import Any

import numpy as np

from perfmodel.base.arrays import Floats, Ints, Mask, distinct
from perfmodel.base.units import human_us
from perfmodel.ops.families import family_of_kernel
from perfmodel.ops.spec import OPS
from perfmodel.plot.names import WAIT_BEFORE
from perfmodel.prediction.what_if import HOST_CAUSES
from perfmodel.timeline.critical_path import PathWalker, TimelinePath, interval_union
from perfmodel.timeline.graph.kinds import NOT_EXPLAINED, Cause, EdgeKind, Scope
from perfmodel.timeline.graph.types import ExecutionGraph
from perfmodel.timeline.schedule import Timeline, by_rank_and_step, measured, steady_steps
from perfmodel.trace.columns import NONE

HOST, DATA_LOADING, LOOKUPS, KERNELS, COPIES, LINK, STARTS_LATE, OTHER = (
    *("host", "data_loading", "lookups", "kernels", "copies", "link", "starts_late", "other"),
)
"""Why a rank comes late; `link`: exchanges that not all ranks take part in."""
_CAUSE = {
    **dict.fromkeys((*HOST_CAUSES, Cause.ALLOCATOR), HOST),
    Cause.DATA_LOADING: DATA_LOADING,
    Cause.COMPUTE: KERNELS,
    Cause.MEMCPY: COPIES,
    Cause.COMMUNICATION: LINK,
    Cause.BEFORE_WINDOW: STARTS_LATE,
}


def slowest_of(step_us: Sequence[float], waiting_us: Sequence[float | None]) -> int:
    """Which rank stands for a job: the one with the longest steps; of equal ones, the one that
    waits least."""
    last = [at for at, us in enumerate(step_us) if us >= (1 - 1e-9) * max(step_us)]
    return min(last, key=lambda at: waiting_us[at] or 0.0)


@dataclass(frozen=True)
class RankWaiting:
    """What ranks spend at the collectives where they meet, microseconds per step, by rank.

    The straggler is the rank that the others wait for most, all collectives together. Its delay is
    where its way from the collective before differs from the mean of theirs: host, data loading,
    lookups, other kernels, copies, a link that only it uses, or a recording that begins late. Work
    on the device counts as far as the straggler has more of it: the others may have done theirs
    while they waited (`other`).
    """

    transfer_us: dict[int, float]
    waiting_us: dict[int, float]
    held_up_us: dict[int, float]
    """How long all others together wait for it."""
    _late_us: Callable[[int], dict[str, float]] = field(repr=False, compare=False)

    @property
    def straggler(self) -> int:
        """The rank that holds the others up most."""
        return max(self.held_up_us, key=lambda rank: self.held_up_us[rank])

    def of_rank(self, rank: int) -> dict[str, Any]:
        """`transfer_us` and `waiting_us` of one."""
        return {key: getattr(self, key).get(rank, 0.0) for key in ("transfer_us", "waiting_us")}

    @cached_property
    def late_us(self) -> dict[str, float]:
        """By cause: how much later than the mean of the others the straggler comes."""
        return self._late_us(self.straggler)

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


def _within(time_us: Floats, low_us: Floats, high_us: Floats) -> Mask:
    """Which times lie in one of the intervals."""
    at = np.searchsorted(low_us, time_us, side="right") - 1
    result: Mask = (at >= 0) & (time_us < high_us[at])
    return result


def rank_waiting(timeline: Timeline, steady: Ints | None = None) -> RankWaiting | None:
    """Transfer and waiting over the `steady` steps, and who is waited for; None where no ranks
    meet."""
    graph = timeline.graph
    if graph.arrivals is None:
        return None
    steady = steady_steps(measured(graph)) if steady is None else steady
    begun = by_rank_and_step(graph, timeline.end_us[graph.marks.start])[:, steady].min(axis=0)
    over = by_rank_and_step(graph, timeline.end_us[graph.marks.end])[:, steady].max(axis=0)
    within = interval_union(begun, over)
    if not len(within[0]):
        return None
    transfer, arrival, meeting, since_us = _meetings(timeline, *within)
    if not len(transfer):
        return None
    steps = max(len(steady), 1)
    ranks, of_rank = np.unique(graph.nodes_.rank[arrival], return_inverse=True)
    arrived, begun_us = timeline.start_us[arrival], timeline.start_us[transfer]
    # The last to arrive at each meeting, and how long the others wait for it.
    in_order = np.lexsort((-np.arange(len(arrived)), arrived, meeting))
    last = in_order[np.flatnonzero(np.diff(meeting[in_order], append=NONE))][meeting]
    columns = (
        np.bincount(of_rank, timeline.end_us[transfer] - begun_us) / steps,
        np.bincount(of_rank, begun_us - arrived) / steps,
        np.bincount(of_rank[last], arrived[last] - arrived, len(ranks)) / steps,
    )
    transfer_us, waiting_us, held_up_us = (
        dict(zip(ranks.tolist(), each.tolist(), strict=True)) for each in columns
    )
    late_us = partial(_late_us, timeline, within, steps, arrival, meeting, since_us, last)
    return RankWaiting(transfer_us, waiting_us, held_up_us, late_us)


def _meetings(
    timeline: Timeline, low_us: Floats, high_us: Floats
) -> tuple[Ints, Ints, Ints, Floats]:
    """Of the collectives on devices that begin in these intervals, by rank: transfer, arrival,
    which meeting in order of time, and when the one before it was over."""
    graph, edges, since_us = timeline.graph, timeline.graph.edges_, float(low_us[0])
    assert graph.arrivals is not None
    meets = np.full(len(graph), NONE, np.int64)
    into = np.flatnonzero(edges.kind == EdgeKind.RENDEZVOUS)
    meets[edges.target[into]] = edges.source[into]
    transfer, arrival = graph.arrivals.T
    order = np.lexsort((transfer, timeline.start_us[transfer]))
    transfer, arrival = transfer[order], arrival[order]
    number = {node: at for at, node in enumerate(dict.fromkeys(meets[transfer].tolist()))}
    meeting = np.array([number[node] for node in meets[transfer].tolist()], np.int64)
    begun_us, over_us = np.full(len(number), np.inf), np.full(len(number), since_us)
    np.minimum.at(begun_us, meeting, timeline.start_us[transfer])
    np.maximum.at(over_us, meeting, timeline.end_us[transfer])
    before_us = np.maximum.accumulate(np.append(since_us, over_us))
    chosen = np.flatnonzero(_within(begun_us, low_us, high_us)[meeting])
    of_chosen = meeting[chosen]
    _, renumbered = np.unique(of_chosen, return_inverse=True)
    return transfer[chosen], arrival[chosen], renumbered, before_us[of_chosen]


def _late_us(
    timeline: Timeline,
    within: tuple[Floats, Floats],
    steps: int,
    arrival: Ints,
    meeting: Ints,
    since_us: Floats,
    last: Ints,
    straggler: int,
) -> dict[str, float]:
    """By cause, per step: how much later than the mean of the others the straggler comes to the
    meetings that it is the `last` of (places in `arrival`)."""
    graph, nodes, walker = timeline.graph, timeline.graph.nodes_, PathWalker(timeline)
    late_us, size = defaultdict[str, float](float), np.bincount(meeting)[meeting]
    for at in np.flatnonzero(nodes.rank[arrival[last]] == straggler).tolist():
        share = 1.0 if at == last[at] else -1.0 / (int(size[at]) - 1)
        from_us = max(float(timeline.start_us[arrival[at]]), float(since_us[at]))
        for piece in walker.walk(int(arrival[at]), from_us, float(since_us[at])):
            cause = _cause_of(graph.labels[piece.node], int(piece.cause))
            late_us[cause] += share * (piece.end_us - piece.start_us)
    # How much more its device does than the others' mean bounds what its device makes it late by.
    taken_us, excess_us = timeline.end_us - timeline.start_us, defaultdict[str, float](float)
    weight = np.where(nodes.rank == straggler, 1.0, -1.0 / (len(distinct(graph.marks.rank)) - 1))
    chosen = _within(timeline.start_us, *within) & np.isin(
        nodes.scope, (Scope.COMPUTE, Scope.MEMCPY)
    )
    for node in np.flatnonzero(chosen).tolist():
        cause = _cause_of(graph.labels[node], int(nodes.cause[node]))
        excess_us[cause] += float(weight[node] * taken_us[node])
    for cause in (KERNELS, LOOKUPS, COPIES):
        shifted_us = late_us[cause] - min(late_us[cause], max(excess_us[cause], 0.0))
        late_us[cause] -= shifted_us
        late_us[OTHER] += shifted_us
    return {cause: us / steps for cause, us in late_us.items()}


@cache
def _cause_of(label: str, code: int) -> str:
    """Of a node; kernels that are, by their name or the op that was modelled, lookups."""
    cause, modelled = _CAUSE.get(Cause(code), OTHER), OPS.get(label)
    if cause != KERNELS:
        return cause
    families = family_of_kernel(label), modelled.family if modelled else ""
    return LOOKUPS if "embedding" in families else KERNELS


MAX_UNEXPLAINED_FRAC = 0.05
"""A step of which more is unexplained is said to be so."""
MAX_ERROR_FRAC = 0.015
"""A replay further off than this does not follow from its graph."""


@dataclass(frozen=True)
class Unexplained:
    """What of a step's critical path waited for something that was not recorded."""

    step: str
    rank: int
    frac: float
    """Share of the step, 0 to 1."""
    longest: str
    """The longest of these waits, in words; empty where there is none."""

    @classmethod
    def of(cls, graph: ExecutionGraph, mark: int, path: TimelinePath) -> Unexplained:
        """That of the step in row `mark` of `graph.marks`, whose critical path is `path`."""
        name, rank = graph.marks.name[mark], int(graph.marks.rank[mark])
        waits = [piece for piece in path if piece.cause in NOT_EXPLAINED]
        if not waits:
            return cls(name, rank, 0.0, "")
        step_us = path[-1].end_us - path[0].start_us
        taken_us = sum(piece.end_us - piece.start_us for piece in waits)
        worst = max(waits, key=lambda piece: piece.end_us - piece.start_us)
        missing = worst.cause == Cause.RECORDING_MISSING
        where = graph.resources[int(graph.nodes_.resource[worst.node])].partition("/")[2]
        label = graph.labels[worst.node].removeprefix(WAIT_BEFORE)
        length = human_us(worst.end_us - worst.start_us)
        reason = " (work that was not recorded)" if missing else ""
        longest = f"{length} before {label[:60]!r} on {where}{reason}"
        return cls(name, rank, taken_us / step_us, longest)


def unexplained_warnings(steps: Sequence[Unexplained]) -> list[str]:
    """One line per rank of which a step is unexplained to more than `MAX_UNEXPLAINED_FRAC`."""
    lines = []
    for rank in dict.fromkeys(step.rank for step in steps):
        many = [s for s in steps if s.rank == rank and s.frac > MAX_UNEXPLAINED_FRAC]
        if many:
            worst = max(many, key=lambda step: step.frac)
            others = f" (and much of {len(many) - 1} more)" if len(many) > 1 else ""
            lines.append(
                f"rank {rank}: {100 * worst.frac:.1f} % of {worst.step}{others} is unexplained: "
                f"the longest wait is {worst.longest}. A replay keeps it as measured; only "
                "--scale unexplained=FACTOR changes it"
            )
    return lines


def error_warnings(rank: int, steps: Sequence[tuple[str, float, float]]) -> list[str]:
    """A line where a replayed step (name, predicted, measured) is off by `MAX_ERROR_FRAC`."""
    off = [(name, us / true_us - 1) for name, us, true_us in steps if true_us]
    off = [(name, error) for name, error in off if abs(error) > MAX_ERROR_FRAC]
    if not off:
        return []
    name, error = max(off, key=lambda each: abs(each[1]))
    others = f" (of {len(off)} such steps)" if len(off) > 1 else ""
    return [
        f"rank {rank}: the replay of {name}{others} is {100 * error:+.1f} % off what was measured, "
        "for a reason that stays unexplained: treat what-ifs of it with care"
    ]
