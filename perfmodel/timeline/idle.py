"""Every idle microsecond of the device gets one cause, summed along host threads.

An idle interval ends where an operation starts; walking back along what decided that start says
what the device waited for. After the last operation of the trace it is `end_of_step`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple

import numpy as np

from perfmodel.base.arrays import Floats, Ints, Mask
from perfmodel.timeline.critical_path import PathWalker, Piece, TimelinePath
from perfmodel.timeline.graph.kinds import Cause, Scope
from perfmodel.timeline.schedule import Timeline
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
