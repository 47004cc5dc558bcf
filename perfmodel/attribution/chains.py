"""Sums of time per cause along host threads, so that idle time adds up without walking it.

Most idle intervals end with a kernel whose launch call ends a run of pieces of one thread that
followed one another without a wait. Their causes are differences of running totals.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from perfmodel.graph.kinds import CAUSE_OF_EDGE, LAUNCH_KINDS, Cause, EdgeKind, NodeKind
from perfmodel.graph.lags import PLAUSIBLE_US
from perfmodel.timeline.binding import Binding
from perfmodel.timeline.schedule import Timeline
from perfmodel.trace.columns import NONE, Floats, Ints, Mask

_LATENCY = np.array([int(CAUSE_OF_EDGE[kind]) for kind in EdgeKind])
_PLAUSIBLE_US = np.array([PLAUSIBLE_US[kind][1] for kind in EdgeKind])
_ROUNDING_US = 1e-6
_HOST_KINDS = (NodeKind.HOST, NodeKind.LAUNCH, NodeKind.SYNC, NodeKind.ALLOCATOR, NodeKind.WAIT)


@dataclass(frozen=True)
class Chains:
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
    def of(cls, timeline: Timeline, binding: Binding) -> Chains:
        nodes = timeline.graph.nodes_
        host = np.flatnonzero(np.isin(nodes.kind, _HOST_KINDS))
        host = host[
            np.lexsort((timeline.end_us[host], timeline.start_us[host], nodes.resource[host]))
        ].astype(np.int32)
        start, end, cause = timeline.start_us[host], timeline.end_us[host], nodes.cause[host]
        follows = np.zeros(len(host), bool)
        follows[1:] = (
            (binding.node[host[1:]] == host[:-1])
            & (binding.kind[host[1:]] == EdgeKind.PROGRAM)
            & (np.abs(end[:-1] - start[1:]) < _ROUNDING_US)
        )
        first = np.maximum.accumulate(np.where(follows, 0, np.arange(len(host))))
        taken = end - start
        total = {
            int(code): np.concatenate([[0.0], np.cumsum(np.where(cause == code, taken, 0.0))])
            for code in np.unique(cause)
        }
        position = np.full(len(nodes), NONE, np.int32)
        position[host] = np.arange(len(host))
        return cls(host, position, start, end, cause, start[first], first, total)

    def idle_us(
        self, binding: Binding, node: Ints, low_us: Floats, high_us: Floats
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
        np.add.at(total, _LATENCY[kind[simple]], waited)
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
        found: Ints = np.searchsorted(self._axis, wanted, side="right")
        return found

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
