"""Every idle microsecond of the device gets one cause, summed along host threads.

An idle interval ends where an operation starts; walking back along what decided that start says
what the device waited for. After the last operation of the trace it is `end_of_step`.

Most idle intervals end with a kernel whose launch call ends a run of pieces of one thread that
followed one another without a wait. Their causes are differences of running totals.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import Any, NamedTuple

import numpy as np

from perfmodel.arrays import Floats, Ints, Mask, distinct, has_code
from perfmodel.graph.kinds import CAUSE_OF_EDGE, LAUNCH_KINDS, Cause, EdgeKind, NodeKind, Scope
from perfmodel.graph.measured_waits import PLAUSIBLE_LAG_US
from perfmodel.timeline.critical_path import ROUNDING_US, PathWalker, PlainPiece, TimelinePath
from perfmodel.timeline.schedule import DecidingEdges, Timeline
from perfmodel.trace.columns import NONE


@dataclass(frozen=True)
class Accounting:
    """Device time within one interval. All but `kernel_sum_us` are unions of intervals."""

    step_us: float
    gpu_active_us: float
    gpu_idle_us: float
    compute_us: float
    comm_us: float
    memcpy_us: float
    exposed_comm_us: float
    overlapped_comm_us: float
    kernel_sum_us: float


def account(device: DeviceWork, low_us: float, high_us: float) -> Accounting:
    """Account for the operations of a device within [low_us, high_us].

    Exposed communication is the part of it during which nothing else runs on the device.
    """
    found = account_of(device.timeline, *device.within(low_us, high_us), low_us, high_us)
    idle_us = high_us - low_us - found.gpu_active_us if len(device) else 0.0
    return replace(found, step_us=high_us - low_us, gpu_idle_us=idle_us)


def account_of(
    timeline: Timeline, first: Ints, last: Ints, low_us: float = -inf, high_us: float = inf
) -> Accounting:
    """Account for operations (first and last node of each), of each what lies within
    [low_us, high_us]; without the time in which nothing runs."""
    scope = timeline.graph.nodes_.scope[last]
    start = timeline.start_us[first].clip(low_us, high_us)
    end = timeline.end_us[last].clip(low_us, high_us)

    def busy(chosen: Mask) -> float:
        begun, over = interval_union(start[chosen], end[chosen])
        return float((over - begun).sum())

    active = busy(scope >= 0)
    comm = busy(scope == Scope.COMM)
    exposed = active - busy(scope != Scope.COMM)
    return Accounting(
        step_us=active,
        gpu_active_us=active,
        gpu_idle_us=0.0,
        compute_us=busy(scope == Scope.COMPUTE),
        comm_us=comm,
        memcpy_us=busy(scope == Scope.MEMCPY),
        exposed_comm_us=exposed,
        overlapped_comm_us=comm - exposed,
        kernel_sum_us=float((end - start).sum()),
    )


@dataclass(frozen=True)
class DeviceWork:
    """The operations of one device in order of start, so that a step costs what runs in it."""

    timeline: Timeline
    first: Ints
    """First node of each operation, and in `last` its last: a collective has two."""
    last: Ints
    start_us: Floats
    latest_end_us: Floats
    """The latest end of each operation and all before it."""

    @classmethod
    def of(cls, timeline: Timeline, rank: int | None = None) -> DeviceWork:
        """The operations of one rank, or of all."""
        first, last = timeline.graph.device_span(rank)
        order = np.argsort(timeline.start_us[first], kind="stable")
        latest = np.maximum.accumulate(timeline.end_us[last[order]])
        return cls(timeline, first[order], last[order], timeline.start_us[first[order]], latest)

    def __len__(self) -> int:
        return len(self.first)

    def within(self, low_us: float, high_us: float) -> tuple[Ints, Ints]:
        """(first nodes, last nodes), in their order, of what ran in [low_us, high_us]."""
        begin = np.searchsorted(self.latest_end_us, low_us, side="right")
        end = np.searchsorted(self.start_us, high_us, side="left")
        first, last = self.first[begin:end], self.last[begin:end]
        ran = np.flatnonzero(self.timeline.end_us[last] > low_us)
        in_order = ran[np.argsort(last[ran], kind="stable")]
        return first[in_order], last[in_order]

    def next(self, time_us: Floats) -> tuple[Ints, Floats]:
        """The first operation that starts at or after each time, or -1, and when (else inf)."""
        at = np.searchsorted(self.start_us, time_us, side="left")
        result = at < len(self)
        node = np.full(len(at), NONE, np.int64)
        start_us = np.full(len(at), np.inf)
        node[result], start_us[result] = self.first[at[result]], self.start_us[at[result]]
        return node, start_us


def interval_union(start_us: Floats, end_us: Floats) -> tuple[Floats, Floats]:
    """Disjoint intervals in order of time that cover exactly the given ones."""
    keep = end_us > start_us
    start_us, end_us = start_us[keep], end_us[keep]
    if not len(start_us):
        return start_us, end_us
    order = np.argsort(start_us, kind="stable")
    start_us = start_us[order]
    latest = np.maximum.accumulate(end_us[order])
    opens = np.concatenate([[True], start_us[1:] > latest[:-1]])
    closes = np.concatenate([opens[1:], [True]])
    return start_us[opens], latest[closes]


def uncovered_intervals(
    busy: tuple[Floats, Floats], low_us: float, high_us: float
) -> tuple[Floats, Floats]:
    """What disjoint intervals within [low_us, high_us] leave uncovered of it."""
    start = np.concatenate([[low_us], busy[1]])
    end = np.concatenate([busy[0], [high_us]])
    keep = end > start
    return start[keep], end[keep]


class Gaps(NamedTuple):
    """The idle intervals of a device within a step, and what ended each."""

    start_us: Floats
    end_us: Floats
    node: Ints
    """The operation that followed, or -1 after the last one."""
    resumed_us: Floats
    """When it began: the end of the gap, or (at the end of a step) later."""

    def of(self, rows: Ints) -> Gaps:
        columns: list[Any] = [column[rows] for column in self]
        return Gaps(*columns)


def idle_gaps(device: DeviceWork, low_us: float, high_us: float) -> Gaps:
    """When no operation of a device ran in [low_us, high_us]; none without operations."""
    if not len(device):
        return Gaps(np.zeros(0), np.zeros(0), device.first, np.zeros(0))
    first, last = device.within(low_us, high_us)
    start_us = device.timeline.start_us[first].clip(low_us, high_us)
    end_us = device.timeline.end_us[last].clip(low_us, high_us)
    begun, over = uncovered_intervals(interval_union(start_us, end_us), low_us, high_us)
    following, resumed = device.next(over)
    return Gaps(begun, over, following, np.where(following >= 0, resumed, high_us))


def idle_by_cause(
    gaps: Gaps, walker: PathWalker, chains: HostRuns, binding: DecidingEdges
) -> dict[str, float]:
    """Microseconds of the gaps per cause, by name in lower case."""
    in_step = np.flatnonzero((gaps.node >= 0) & (gaps.resumed_us <= gaps.end_us))
    across, total = _across_one_edge(gaps.of(in_step), walker, binding)
    longer = gaps.of(in_step[~across])
    simple, of_runs = chains.idle_us(binding, longer.node, longer.start_us, longer.end_us)
    total += of_runs
    rest = np.ones(len(gaps.node), bool)
    rest[in_step[across]] = rest[in_step[~across][simple]] = False
    walked = idle_pieces(gaps.of(np.flatnonzero(rest)), walker).by_cause()
    return {
        cause.name.lower(): time_us
        for cause in Cause
        if (time_us := float(total[cause]) + walked.get(cause.name.lower(), 0.0)) > ROUNDING_US
    }


def _across_one_edge(gaps: Gaps, walker: PathWalker, binding: DecidingEdges) -> tuple[Mask, Floats]:
    """Which gaps lie within the way along one edge, as between kernels of a stream, and the time
    per cause of those together."""
    kind, freed_us = binding.kind[gaps.node], np.asarray(walker.end)[binding.node[gaps.node]]
    across = (kind >= 0) & (kind != EdgeKind.PROGRAM) & (freed_us <= gaps.start_us)
    across &= gaps.end_us - freed_us <= _PLAUSIBLE_US[kind]
    total = np.zeros(len(Cause))
    np.add.at(total, _CAUSE_OF_KIND[kind[across]], (gaps.end_us - gaps.start_us)[across])
    return across, total


def idle_pieces(gaps: Gaps, walker: PathWalker) -> TimelinePath:
    """The gaps piece by piece: what a figure shows, and what the sums are made of."""
    pieces: list[PlainPiece] = []
    for low, high, node, resumed in zip(*(column.tolist() for column in gaps), strict=True):
        if node == NONE:
            pieces.append((NONE, NONE, int(Cause.END_OF_STEP), low, high))
            continue
        walked = walker.walk(node, resumed, low).plain
        if resumed > high:
            walked = [(n, e, c, b, min(o, high)) for n, e, c, b, o in walked if b < high]
        pieces += walked
    return TimelinePath(pieces)


_CAUSE_OF_KIND = np.array([int(CAUSE_OF_EDGE[kind]) for kind in EdgeKind])
_PLAUSIBLE_US = np.array([PLAUSIBLE_LAG_US[kind][1] for kind in EdgeKind])
_RUN_TOLERANCE_US = 1e-6
_HOST_KINDS = (NodeKind.HOST, NodeKind.LAUNCH, NodeKind.SYNC, NodeKind.ALLOCATOR, NodeKind.WAIT)


@dataclass(frozen=True)
class HostRuns:
    """Host nodes by thread and time, in runs without a wait, with running totals per cause."""

    node: Ints
    position: Ints
    """Per node of the graph: its place in `node`, or -1."""
    start_us: Floats
    end_us: Floats
    cause: Ints
    run_start_us: Floats
    """Per place: when its run began."""
    run_first: Ints
    """Per place: the first place of its run."""
    total_us: dict[int, Floats]
    """Per cause: `[places + 1]`, its time before each place."""

    @classmethod
    def of(cls, timeline: Timeline, binding: DecidingEdges) -> HostRuns:
        nodes = timeline.graph.nodes_
        host = np.flatnonzero(has_code(nodes.kind, _HOST_KINDS))
        host = host[
            np.lexsort((timeline.end_us[host], timeline.start_us[host], nodes.resource[host]))
        ].astype(np.int32)
        start, end, cause = timeline.start_us[host], timeline.end_us[host], nodes.cause[host]
        follows = np.zeros(len(host), bool)
        follows[1:] = (
            (binding.node[host[1:]] == host[:-1])
            & (binding.kind[host[1:]] == EdgeKind.PROGRAM)
            & (np.abs(end[:-1] - start[1:]) < _RUN_TOLERANCE_US)
        )
        first = np.maximum.accumulate(np.where(follows, 0, np.arange(len(host))))
        taken = end - start
        total = {
            int(code): np.concatenate([[0.0], np.cumsum(np.where(cause == code, taken, 0.0))])
            for code in distinct(cause)
        }
        position = np.full(len(nodes), NONE, np.int32)
        position[host] = np.arange(len(host))
        return cls(host, position, start, end, cause, start[first], first, total)

    def idle_us(
        self, binding: DecidingEdges, node: Ints, low_us: Floats, high_us: Floats
    ) -> tuple[Mask, Floats]:
        """Which gaps [low, high] before device operations `node` are explained by one run, and
        the time per cause of those together."""
        total = np.zeros(len(Cause))
        if not len(self.node) or not len(node):
            return np.zeros(len(node), bool), total
        launch, kind = binding.node[node], binding.kind[node]
        place = np.where(launch >= 0, self.position[launch], NONE)
        latency = high_us - self.end_us[place]
        simple = (
            (place >= 0)
            & np.isin(kind, LAUNCH_KINDS)
            & (self.run_start_us[place] <= low_us)
            & (self.start_us[place] < high_us)
            & (latency <= _PLAUSIBLE_US[kind])
        )
        place, low, high = place[simple], low_us[simple], high_us[simple]
        ended = np.minimum(self.end_us[place], high)
        begun = np.minimum(self._place_at(place, low), place)
        waited = high - np.maximum(ended, low)
        np.add.at(total, _CAUSE_OF_KIND[kind[simple]], waited)
        worked = ended > low
        place, begun, low, ended = place[worked], begun[worked], low[worked], ended[worked]
        for code, before in self.total_us.items():
            total[code] += (before[place + 1] - before[begun]).sum()
        np.subtract.at(total, self.cause[begun], low - self.start_us[begun])
        np.subtract.at(total, self.cause[place], self.end_us[place] - ended)
        return simple, total

    def _place_at(self, place: Ints, time_us: Floats) -> Ints:
        """The place within the run of `place` whose piece lasts beyond `time_us`.

        Runs are laid end to end on one axis, so that one search serves all of them.
        """
        begun_us, span_us = self._span
        wanted = self.run_first[place] * span_us + (time_us - begun_us)
        result: Ints = np.searchsorted(self._axis, wanted, side="right")
        return result

    @cached_property
    def _span(self) -> tuple[float, float]:
        """When the first piece begins, and how far on the axis runs lie apart at least."""
        begun_us = float(self.start_us.min())
        return begun_us, float(self.end_us.max()) - begun_us + 1.0

    @cached_property
    def _axis(self) -> Floats:
        """Per place, its end on the axis of all runs."""
        begun_us, span_us = self._span
        axis: Floats = self.run_first * span_us + (self.end_us - begun_us)
        return axis
