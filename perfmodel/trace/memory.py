"""Allocations of a profile (`profile_memory=True`): instant events to columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import compress

import msgspec
import numpy as np

from perfmodel.trace.columns import Allocations, Ints
from perfmodel.trace.kineto_json import Instant, MemoryArgs
from perfmodel.trace.window import Window

MEMORY = "[memory]"
"""Name of the events."""
_COLUMNS = (
    *("device_type", "device", "size_bytes", "address", "allocated_bytes", "reserved_bytes"),
)
"""Those of `Allocations` behind its times."""
_NO_ARGS = MemoryArgs()

Times = Callable[[str, list[msgspec.Raw], Ints], Ints]
"""Key, its values and the rows that they stand in to nanoseconds; raises where one is no number."""


class MemoryRows:
    """The allocations met so far."""

    def __init__(self, times: Times, window: Window | None = None) -> None:
        self._times, self._window = times, window
        self._parts: list[Ints] = []
        self._unreadable = 0

    def add(self, events: list[Instant], file_index: Ints) -> None:
        """Take the instant events of a block over; `file_index` says where each stands."""
        at_ns = self._times("ts", [event.ts for event in events], file_index)
        counts = np.array([event.name == MEMORY for event in events])
        if self._window is not None:
            counts &= self._window.keeps(at_ns, np.zeros(len(at_ns), np.bool_))
        args = [event.args or _NO_ARGS for event in compress(events, counts.tobytes())]
        if args:
            found, known = _whole_numbers([[getattr(a, key) for a in args] for key in _COLUMNS])
            self._unreadable += len(args) - len(known)
            self._parts.append(np.vstack([at_ns[counts][known], found]))

    def found(self, first_ns: int) -> Allocations:
        """All of them, their times after `first_ns`."""
        if not self._parts:
            return Allocations(unreadable=self._unreadable)
        table = np.concatenate(self._parts, axis=1)
        at_ns, *columns = table[:, np.argsort(table[0], kind="stable")]
        named = dict(zip(_COLUMNS, columns, strict=True))
        return Allocations((at_ns - first_ns) / 1e3, **named, unreadable=self._unreadable)


def _whole_numbers(columns: Sequence[Sequence[object]]) -> tuple[Ints, Ints]:
    """`[column, event]` of the values, and which events have a whole number in every column."""
    try:
        found = np.array(columns)
    except (OverflowError, ValueError):
        found = np.zeros(0)
    if found.dtype == np.int64:
        return found, np.arange(found.shape[1])
    known = [
        at
        for at, values in enumerate(zip(*columns, strict=True))
        if all(type(value) is int and -(2**63) <= value < 2**63 for value in values)
    ]
    rows = [[column[at] for at in known] for column in columns]
    return np.array(rows, np.int64).reshape(len(columns), len(known)), np.array(known, np.int64)
