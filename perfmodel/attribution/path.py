"""Walking back from a node along what decided each start: the critical path, and idle causes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from perfmodel.graph.kinds import CAUSE_OF_EDGE, LAUNCH_KINDS, Cause, EdgeKind, NodeKind
from perfmodel.graph.lags import PLAUSIBLE_US
from perfmodel.timeline.binding import Binding, bind
from perfmodel.timeline.schedule import Timeline
from perfmodel.trace.columns import NONE

_PROGRAM = int(EdgeKind.PROGRAM)
_CAUSES = [int(CAUSE_OF_EDGE[kind]) for kind in EdgeKind]
_PLAUSIBLE_US = [PLAUSIBLE_US[kind][1] for kind in EdgeKind]
_CAUSE_OF_WAITING_NODE = {
    int(NodeKind.SYNC): int(Cause.BLOCKING_CALL),
    int(NodeKind.WAIT): int(Cause.BLOCKING_CALL),
    int(NodeKind.ALLOCATOR): int(Cause.ALLOCATOR),
    int(NodeKind.LAUNCH): int(Cause.LAUNCH_QUEUE_FULL),
}
"""What a node waited for when nothing that was recorded held it back."""


class Piece(NamedTuple):
    """A stretch of a path, in order from late to early: a node, or (`edge`) the way to it."""

    node: int
    edge: int
    """`EdgeKind`, or -1 when the piece is the node itself."""
    cause: int
    """`Cause`."""
    start_us: float
    end_us: float


@dataclass(frozen=True)
class Walker:
    """The arrays of a timeline as lists, for many walks."""

    start: list[float]
    end: list[float]
    before: list[int]
    edge: list[int]
    cause: list[int]
    kind: list[int]
    lag: list[float]
    """Per node: the lag of the edge that decided."""
    unknown: int
    release: dict[int, int]
    """Cause of the time before nodes that nothing recorded set free."""

    @classmethod
    def of(cls, timeline: Timeline, binding: Binding | None = None) -> Walker:
        binding = binding or bind(timeline)
        nodes = timeline.graph.nodes_
        return cls(
            start=timeline.start_us.tolist(),
            end=timeline.end_us.tolist(),
            before=binding.node.tolist(),
            edge=binding.kind.tolist(),
            cause=nodes.cause.tolist(),
            kind=nodes.kind.tolist(),
            lag=binding.lag_us.tolist(),
            unknown=int(timeline.graph.unknown),
            release=_causes_of_release(timeline, binding),
        )

    def walk(self, node: int, from_us: float, stop_us: float) -> list[Piece]:
        """Pieces from `from_us` (at or before the end of `node`) back to `stop_us`.

        They leave no hole and sum to `from_us - stop_us` exactly. Where what decided a start
        explains only part of the way to it, the rest is `unexplained`.
        """
        pieces: list[Piece] = []
        start, end, before = self.start, self.end, self.before
        now = from_us
        while now > stop_us:
            begun = start[node]
            if begun < now:
                begun = max(begun, stop_us)
                pieces.append(Piece(node, NONE, self.cause[node], begun, now))
                now = begun
                if now <= stop_us:
                    break
            earlier = before[node]
            if earlier == NONE:
                pieces.append(Piece(node, NONE, self.release[node], stop_us, now))
                break
            freed = end[earlier]
            if freed < now:
                freed = max(freed, stop_us)
                pieces += self._gap(node, freed, now)
                now = freed
            node = earlier
        return pieces

    def _gap(self, node: int, start_us: float, end_us: float) -> list[Piece]:
        kind = self.edge[node]
        if kind == _PROGRAM:
            waiting = _CAUSE_OF_WAITING_NODE.get(self.kind[node], self.unknown)
            return [Piece(node, kind, waiting, start_us, end_us)]
        cause = _CAUSES[kind]
        if end_us - start_us <= _PLAUSIBLE_US[kind]:
            return [Piece(node, kind, cause, start_us, end_us)]
        known = min(start_us + max(self.lag[node], 0.0), end_us)
        return [
            Piece(node, kind, self.unknown, known, end_us),
            Piece(node, kind, cause, start_us, known),
        ]


def _causes_of_release(timeline: Timeline, binding: Binding) -> dict[int, int]:
    """Operations ahead of every launched one of their stream began before the window; a later one
    without a launch call misses its record."""
    graph = timeline.graph
    nodes, edges = graph.nodes_, graph.edges_
    launched = edges.target[np.isin(edges.kind, LAUNCH_KINDS)]
    first = np.full(len(graph.resources), np.inf)
    np.minimum.at(first, nodes.resource[launched], nodes.start_us[launched])
    free = np.flatnonzero(binding.node == NONE)
    late = (nodes.kind[free] >= NodeKind.KERNEL) & (
        nodes.start_us[free] > first[nodes.resource[free]]
    )
    return {
        int(node): int(Cause.RECORDING_MISSING if missing else Cause.BEFORE_WINDOW)
        for node, missing in zip(free, late, strict=True)
    }


def critical_path(timeline: Timeline, mark: int, walker: Walker | None = None) -> list[Piece]:
    """The chain that decided when step `mark` (a row of `graph.marks`) ended, early to late.

    Its pieces sum to the duration of the step exactly.
    """
    walker = walker or Walker.of(timeline)
    marks = timeline.graph.marks
    begun, over = timeline.end_us[marks.start[mark]], timeline.end_us[marks.end[mark]]
    return walker.walk(int(marks.end[mark]), float(over), float(begun))[::-1]


def by_cause(pieces: list[Piece]) -> dict[str, float]:
    """Microseconds per cause, by name in lower case; causes without time are left out."""
    taken = np.array([piece.end_us - piece.start_us for piece in pieces])
    causes = np.array([piece.cause for piece in pieces], np.int64)
    total = np.bincount(causes, taken, minlength=len(Cause)) if pieces else np.zeros(len(Cause))
    return {cause.name.lower(): float(total[cause]) for cause in Cause if total[cause] > 0}
