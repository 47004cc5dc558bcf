"""Allocations that a Kineto file records as instant events, to columns."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from itertools import compress
from operator import attrgetter
from typing import Any

import numpy as np

from perfmodel.arrays import Ints
from perfmodel.trace.columns import Allocations
from perfmodel.trace.kineto_json import Instant, MemoryArgs
from perfmodel.trace.window import Window

MEMORY_EVENT_NAME = "[memory]"
"""Name of the events."""
_ALLOCATION_COLUMNS = (
    *("device_type", "device", "size_bytes", "address", "allocated_bytes", "reserved_bytes"),
)
"""Those of `Allocations` behind its times."""
_NO_MEMORY_ARGS = MemoryArgs()
_allocation_values = attrgetter(*_ALLOCATION_COLUMNS)

ParseTimes = Callable[[str, list[Any], Ints], Ints]
"""Key, its values and their rows to nanoseconds; raises where one is not a number."""


class AllocationRows:
    """The allocations read so far."""

    def __init__(self, times: ParseTimes, window: Window | None = None) -> None:
        self._times, self._window = times, window
        self._parts: list[Ints] = []
        self._numbers = array("q")
        self._unreadable = 0

    def add(self, events: list[Instant], file_index: Ints) -> None:
        """Take the instant events of a block over; `file_index` says where each stands."""
        at_ns = self._times("ts", [event.ts for event in events], file_index)
        is_memory = bytes([event.name == MEMORY_EVENT_NAME for event in events])
        counts = np.frombuffer(is_memory, np.bool_)
        if self._window is not None:
            counts = counts & self._window.keeps(at_ns, np.zeros(len(at_ns), np.bool_))
        numbers = [event.args.event_index for event in events if event.args]
        try:
            self._numbers.extend(array("q", numbers))  # type: ignore[arg-type]
        except (TypeError, OverflowError):
            whole = (each for each in numbers if type(each) is int and 0 <= each < 2**63)
            self._numbers.extend(whole)
        args = [event.args or _NO_MEMORY_ARGS for event in compress(events, counts.tobytes())]
        if args:
            result, known = _whole_numbers(list(map(_allocation_values, args)))
            self._unreadable += len(args) - len(known)
            self._parts.append(np.vstack([at_ns[counts][known], result]))

    def found(self, first_ns: int) -> Allocations:
        """All of them, their times after `first_ns`."""
        numbers = np.array(self._numbers, np.int64)
        numbers = numbers[numbers >= 0]
        if not self._parts:
            return Allocations(unreadable=self._unreadable, numbers=numbers)
        table = np.concatenate(self._parts, axis=1)
        at_ns, *columns = table[:, np.argsort(table[0], kind="stable")]
        named = dict(zip(_ALLOCATION_COLUMNS, columns, strict=True))
        return Allocations(
            (at_ns - first_ns) / 1e3, **named, unreadable=self._unreadable, numbers=numbers
        )


def _whole_numbers(values: Sequence[tuple[object, ...]]) -> tuple[Ints, Ints]:
    """`[column, event]` of the events' values, and which of them are whole numbers all."""
    try:
        columns = [array("q", column) for column in zip(*values, strict=True)]
        return np.array(columns), np.arange(len(values))
    except (TypeError, OverflowError):
        pass
    known = [
        at
        for at, each in enumerate(values)
        if all(type(value) is int and -(2**63) <= value < 2**63 for value in each)
    ]
    rows = np.array([values[at] for at in known], np.int64)
    return rows.reshape(len(known), len(_ALLOCATION_COLUMNS)).T, np.array(known, np.int64)
