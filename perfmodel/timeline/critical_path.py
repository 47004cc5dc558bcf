"""Walking back from a node along what decided each start: the critical path, and idle causes; as
frames and a figure.

Every idle microsecond of the device gets one cause. An idle interval ends where an operation
starts: the walk back from there says what the device waited for. After the last operation of the
trace it is `end_of_step`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Floats, Ints, Mask, has_code
from perfmodel.timeline.graph.kinds import (
    CAUSE_OF_EDGE,
    CAUSE_ON_THREAD,
    DEVICE_KINDS,
    LAUNCH_KINDS,
    PLAUSIBLE_LAG_US,
    Cause,
    EdgeKind,
    Scope,
)
from perfmodel.timeline.graph.types import names
from perfmodel.timeline.schedule import Timeline, deciding_edges, step_bounds
from perfmodel.trace.columns import NONE

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

ROUNDING_US = 1e-7
"""Sums of differences leave up to this much where there is no time."""
_PROGRAM = int(EdgeKind.PROGRAM)
_CAUSES = [int(CAUSE_OF_EDGE[kind]) for kind in EdgeKind]
_PLAUSIBLE_US = [PLAUSIBLE_LAG_US[kind][1] for kind in EdgeKind]
_CAUSE_OF_WAITING_NODE = {int(kind): int(cause) for kind, cause in CAUSE_ON_THREAD.items()}


class Piece(NamedTuple):
    """A stretch of a path, in order from late to early: a node, or (`edge`) the way to it."""

    node: int
    edge: int
    """`EdgeKind`, or -1 when the piece is the node itself."""
    cause: int
    """`Cause`."""
    start_us: float
    end_us: float


class TimelinePath(list[Piece]):
    """Pieces in order."""

    def by_cause(self) -> dict[str, float]:
        """Microseconds per cause, by name in lower case; causes without time are left out."""
        total = [0.0] * len(Cause)
        for _, _, cause, start_us, end_us in self:
            total[cause] += end_us - start_us
        return {cause.name.lower(): total[cause] for cause in Cause if total[cause] > ROUNDING_US}


class PathWalker:
    """The arrays of a timeline as views whose items are plain numbers, for many walks.

    `before` is the node that set each free last, or -1; `edge` and `lag` the edge's kind and lag.
    """

    def __init__(self, timeline: Timeline) -> None:
        graph, deciding = timeline.graph, deciding_edges(timeline)
        nodes, edges = graph.nodes_, graph.edges_
        self.start, self.end = _view(timeline.start_us), _view(timeline.end_us)
        self.before, self.edge = (
            _view(np.append(column, NONE)[deciding]) for column in (edges.source, edges.kind)
        )
        self.lag = _view(np.append(edges.lag_us, 0.0)[deciding])
        self.cause, self.kind = _view(nodes.cause), _view(nodes.kind)
        self.unknown = int(graph.unknown)
        self.release = _causes_of_release(timeline, np.flatnonzero(deciding == NONE))

    def walk(self, node: int, from_us: float, stop_us: float) -> TimelinePath:
        """Pieces from `from_us` (at or before the end of `node`) back to `stop_us`, late to early.

        They leave no hole and sum to `from_us - stop_us` exactly. Where what decided a start
        explains only part of the way to it, the rest is `unexplained`.
        """
        pieces = TimelinePath()
        start, end, before, edge, cause = self.start, self.end, self.before, self.edge, self.cause
        now = from_us
        while now > stop_us:
            begun = start[node]
            if begun < now:
                if begun <= stop_us:
                    pieces.append(Piece(node, NONE, cause[node], stop_us, now))
                    break
                pieces.append(Piece(node, NONE, cause[node], begun, now))
                now = begun
            earlier = before[node]
            if earlier == NONE:
                pieces.append(Piece(node, NONE, self.release[node], stop_us, now))
                break
            freed = end[earlier]
            if freed < now:
                kind = edge[node]
                if kind != _PROGRAM and now - freed <= _PLAUSIBLE_US[kind]:
                    pieces.append(Piece(node, kind, _CAUSES[kind], max(freed, stop_us), now))
                else:
                    pieces += self._odd_gap(node, freed, now, stop_us)
                now = freed
            node = earlier
        return pieces

    def _odd_gap(self, node: int, freed_us: float, now_us: float, stop_us: float) -> list[Piece]:
        """A way to `node` that its edge explains in part only, or (on one thread) not at all."""
        kind = self.edge[node]
        if kind == _PROGRAM:
            waiting = _CAUSE_OF_WAITING_NODE.get(self.kind[node], self.unknown)
            return [Piece(node, kind, waiting, max(freed_us, stop_us), now_us)]
        known = min(freed_us + max(self.lag[node], 0.0), now_us)
        parts = [
            Piece(node, kind, self.unknown, max(known, stop_us), now_us),
            Piece(node, kind, _CAUSES[kind], max(freed_us, stop_us), known),
        ]
        return [part for part in parts if part.start_us < part.end_us]


def _view(column: NDArray[Any]) -> Sequence[Any]:
    """A column without a copy: its items are Python's numbers, as those of a list."""
    return np.ascontiguousarray(column).data


def _causes_of_release(timeline: Timeline, free: Ints) -> dict[int, int]:
    """Per node that no edge set free, why it began when it did.

    Operations ahead of every launched one of their stream began before the window; a later one
    without a launch call misses its record. A thread that begins after another of its rank has a
    reason that was not recorded.
    """
    graph = timeline.graph
    nodes, edges = graph.nodes_, graph.edges_
    launched = edges.target[has_code(edges.kind, LAUNCH_KINDS)]
    first = np.full(len(graph.resources), np.inf)
    np.minimum.at(first, nodes.resource[launched], nodes.start_us[launched])
    is_late = nodes.start_us[free] > first[nodes.resource[free]]
    begun_us = np.full(int(nodes.rank.max(initial=0)) + 1, np.inf)
    np.minimum.at(begun_us, nodes.rank, nodes.start_us)
    is_second = nodes.start_us[free] > begun_us[nodes.rank[free]]
    on_device = has_code(nodes.kind[free], DEVICE_KINDS)
    causes = np.full(len(free), int(Cause.BEFORE_WINDOW))
    causes[on_device & is_late] = Cause.RECORDING_MISSING
    causes[~on_device & is_second] = graph.unknown
    return dict(zip(free.tolist(), causes.tolist(), strict=True))


def critical_path(timeline: Timeline, mark: int, walker: PathWalker | None = None) -> TimelinePath:
    """The chain that decided when step `mark` (a row of `graph.marks`) ended, early to late.

    Its pieces sum to the duration of the step exactly.
    """
    walker = walker or PathWalker(timeline)
    begun, over = step_bounds(timeline, mark)
    return TimelinePath(reversed(walker.walk(int(timeline.graph.marks.end[mark]), over, begun)))


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


class Gap(NamedTuple):
    """An idle interval of a device within a step, and what ended it."""

    start_us: float
    end_us: float
    node: int
    """The operation that followed, or -1 after the last one."""
    resumed_us: float
    """When that began: the end of the gap, or (at the end of a step) later."""


def idle_gaps(device: DeviceWork, low_us: float, high_us: float) -> list[Gap]:
    """When no operation of a device ran in [low_us, high_us]; none without operations."""
    if not len(device):
        return []
    first, last = device.within(low_us, high_us)
    start_us = device.timeline.start_us[first].clip(low_us, high_us)
    end_us = device.timeline.end_us[last].clip(low_us, high_us)
    busy_from, busy_until = interval_union(start_us, end_us)
    begun, over = np.append(low_us, busy_until), np.append(busy_from, high_us)
    begun, over = begun[over > begun], over[over > begun]
    at = np.searchsorted(device.start_us, over, side="left")
    node, resumed_us = np.append(device.first, NONE)[at], np.append(device.start_us, high_us)[at]
    columns = (begun, over, node, resumed_us)
    return [Gap(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def idle_pieces(gaps: Iterable[Gap], walker: PathWalker) -> TimelinePath:
    """The gaps piece by piece: what a figure shows, and what the sums are made of."""
    pieces = TimelinePath()
    for low, high, node, resumed in gaps:
        if node == NONE:
            pieces.append(Piece(NONE, NONE, int(Cause.END_OF_STEP), low, high))
            continue
        for piece in walker.walk(node, resumed, low):
            if piece.start_us < high:
                pieces.append(piece if piece.end_us <= high else piece._replace(end_us=high))
    return pieces


def node_frame(timeline: Timeline) -> pd.DataFrame:
    """The graph's `nodes` with a column `node`, `start_us` and `end_us`; and a row of node -1 for
    each wait for other ranks, from a rank's arrival at a collective to its transfer."""
    import pandas as pd

    graph = timeline.graph
    times = {"start_us": timeline.start_us, "end_us": timeline.end_us}
    nodes = graph.nodes.assign(node=np.arange(len(graph)), **times)
    if graph.arrivals is None:
        return nodes
    transfer, arrival = graph.arrivals.T
    waiting = nodes.iloc[transfer].assign(
        label="waiting for other ranks",
        kind="collective_wait",
        cause="collective_wait",
        scope="none",
        node=NONE,
        start_us=timeline.end_us[arrival],
        end_us=timeline.start_us[transfer],
    )
    return pd.concat([nodes, waiting[waiting.end_us > waiting.start_us]])


def piece_columns(timeline: Timeline, pieces: Iterable[Piece]) -> pd.DataFrame:
    """Pieces of a critical path, or of idle time, in order of time.

    Columns `node` (-1: none), `edge` (text, empty where the piece is the node itself), `cause`,
    `start_us`, `end_us`; of the node `rank`, `resource`, `label` and `kind`.
    """
    import pandas as pd

    frame = pd.DataFrame(list(pieces), columns=list(Piece._fields))
    types: dict[str, Any] = {"node": int, "edge": int, "cause": int, "start_us": float}
    frame = frame.astype(types | {"end_us": float}).sort_values(["start_us", "end_us"])
    frame = frame.reset_index(drop=True)
    has_node = frame.node >= 0
    of_node = timeline.graph.nodes.iloc[frame.node].reset_index(drop=True)
    texts = {name: of_node[name].where(has_node, "") for name in ("resource", "label", "kind")}
    kinds = {"edge": names(EdgeKind, frame.edge), "cause": names(Cause, frame.cause)}
    return frame.assign(rank=of_node["rank"].where(has_node), **texts, **kinds)


def step_figure(
    timeline: Timeline, mark: int, *, path: Iterable[Piece], idle: Iterable[Piece] | None = None
) -> Figure:
    """The timeline of one step (row `mark` of the graph's marks), with its path and idle time."""
    from perfmodel.plot import timeline_figure

    def drawn(pieces: Iterable[Piece]) -> pd.DataFrame:
        """None that only rounding made."""
        every = piece_columns(timeline, pieces)
        return every[every.end_us - every.start_us > ROUNDING_US]

    marks = timeline.graph.marks
    start_us, end_us = step_bounds(timeline, mark)
    return timeline_figure(
        node_frame(timeline),
        path=drawn(path),
        idle=None if idle is None else drawn(idle),
        start_us=start_us,
        end_us=end_us,
        title=f"{marks.name[mark]}, rank {marks.rank[mark]}",
    )
