"""The operations of one device, found by when they ran."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.timeline.schedule import Timeline
from perfmodel.trace.columns import NONE, Floats, Ints


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
        found = at < len(self)
        node = np.full(len(at), NONE, np.int64)
        start_us = np.full(len(at), np.inf)
        node[found], start_us[found] = self.first[at[found]], self.start_us[at[found]]
        return node, start_us
