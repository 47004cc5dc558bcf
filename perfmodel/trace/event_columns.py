"""Columns of events that come in blocks: of all events, or of groups of them; texts as codes;
allocations, which Kineto files record as instant events."""

from __future__ import annotations

import re
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import compress
from operator import attrgetter
from struct import error, pack
from typing import Any
from zlib import crc32

import msgspec
import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Ints
from perfmodel.trace.columns import NONE, Allocations, Strings
from perfmodel.trace.kineto_json import Instant, MemoryArgs

_NUMBER = re.compile(rb"-?\d+(\.\d+)?([eE][-+]?\d{1,3})?")
_MERGED_BLOCKS = 64


def packed(kind: str, values: Sequence[Any]) -> bytes:
    """Integers (`q`) or floats (`d`) of eight bytes each: twice as fast as `array`.

    Raises `struct.error` for a value of another type, or that does not fit.
    """
    return pack(f"{len(values)}{kind}", *values)


def packed_floats(values: list[Any]) -> bytes:
    """Numbers as they are, 0 for each text."""
    try:
        return packed("d", values)
    except error:
        return packed("d", [0.0 if isinstance(value, str) else value for value in values])


def packed_integers(values: list[Any]) -> bytes:
    """Integers as they are, texts as `_integer` has them."""
    try:
        return packed("q", values)
    except error:
        known = {value: _integer(value) for value in set(values)}
        return packed("q", [known[value] for value in values])


def _integer(value: int | str) -> int:
    """An integer as it is; the text of one parsed; any other text as its stable hash."""
    try:
        number = int(value)
    except ValueError:
        return crc32(str(value).encode())
    return number if -(2**63) <= number < 2**63 else NONE


def unquoted(value: msgspec.Raw) -> bytes:
    """A number that may be written as a text; no number for any other."""
    text = bytes(value)
    if text.startswith(b'"'):
        text = text[1:-1].strip()
        return text if _NUMBER.fullmatch(text) else b"null"
    return text


class _Column:
    """Values that come in blocks; integers take 32 bits each, or 64 where one needs it."""

    def __init__(self) -> None:
        self.count = 0
        self._blocks: list[NDArray[Any]] = []
        self._merged: list[NDArray[Any]] = []

    def add(self, values: NDArray[Any]) -> None:
        self._blocks.append(values)
        self.count += len(values)
        if len(self._blocks) >= _MERGED_BLOCKS:
            self._merge()

    def taken(self) -> NDArray[Any]:
        """All values; call it once, as the column is empty then."""
        self._merge()
        values, self._merged = np.concatenate(self._merged or [np.zeros(0, np.int32)]), []
        return values

    def _merge(self) -> None:
        if not self._blocks:
            return
        values = np.concatenate(self._blocks)
        if values.dtype == np.int64 and ((small := values.astype(np.int32)) == values).all():
            values = small
        self._merged.append(values)
        self._blocks = []


class EventColumns:
    """Columns of all events, or of those whose category is among some, which a table says by code
    (`bytes.translate`): None is all."""

    def __init__(self) -> None:
        self.category = bytearray()
        """Of each event, its code."""
        self._columns: dict[Any, dict[bytes | None, _Column]] = {}
        self._counts: dict[bytes | None, int] = defaultdict(int)
        self._rows: dict[bytes | None, Ints] = {}

    def put(
        self,
        name: object,
        values: bytes | NDArray[Any],
        among: bytes | None = None,
        kind: str = "q",
    ) -> None:
        """Values of a block's events; of blocks before without any, they are `NONE`."""
        column = self._columns.setdefault(name, {}).setdefault(among, _Column())
        if missing := self._counts[among] - column.count:
            column.add(np.full(missing, NONE, kind))
        column.add(np.frombuffer(values, kind))

    def close_block(self, among: bytes | None, count: int) -> None:
        """All that a block says of so many events has been put."""
        self._counts[among] += count

    def parts(self, name: object) -> dict[bytes | None, NDArray[Any]]:
        """What the column holds, by the events that it is of; once."""
        columns = self._columns.pop(name, {})
        for among, column in columns.items():
            column.add(np.full(self._counts[among] - column.count, NONE))
        return {among: column.taken() for among, column in columns.items()}

    def set_part(self, name: object, among: bytes | None, values: NDArray[Any]) -> None:
        """A whole column of these events."""
        column = self._columns.setdefault(name, {})[among] = _Column()
        column.add(values)

    def taken(self, name: object) -> NDArray[Any] | None:
        """The column over all events, `NONE` where it is missing; None where nothing was put."""
        parts = self.parts(name)
        if not parts or None in parts:
            return parts.get(None)
        values = np.full(len(self.category), NONE, np.result_type(*parts.values()))
        for among, part in parts.items():
            if among not in self._rows:  # much faster than a mask, for all of its columns
                is_among = np.frombuffer(self.category.translate(among), np.bool_)
                self._rows[among] = np.flatnonzero(is_among)
            values[self._rows[among]] = part
        return values


class TextIndex(dict[Any, int]):
    """A text to its index in `strings`, where it is interned when it is first asked for."""

    def __init__(self, strings: Strings, none: bytes | None) -> None:
        self._strings = strings
        self[none] = NONE

    def __missing__(self, text: str | bytes) -> int:
        index = self._strings.intern(text if isinstance(text, str) else text.decode())
        self[text] = index
        return index

    def of(self, texts: Iterable[Any]) -> bytes:
        """The index of each, packed."""
        return packed("q", list(map(self.__getitem__, texts)))


class TextRows(dict[bytes, int]):
    """Texts of one event, a byte 1 between them, to the number of their row."""

    def __init__(self, texts: TextIndex) -> None:
        self._texts = texts
        self._indices: list[int] = []

    def __missing__(self, row: bytes) -> int:
        number = self[row] = len(self)
        self._indices += map(self._texts.__getitem__, row.split(b"\1"))
        return number

    def of(self, rows: Iterable[bytes]) -> bytes:
        """The number of each, packed."""
        return packed("q", list(map(self.__getitem__, rows)))

    def columns(self, width: int) -> Iterable[Ints]:
        """The index of each text of all rows, then that of no text."""
        table = np.array(self._indices, np.int32).reshape(-1, width)
        return np.vstack([table, np.full((1, width), NONE, np.int32)]).T


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

    def __init__(self, times: ParseTimes) -> None:
        self._times = times
        self._parts: list[Ints] = []
        self._numbers = array("q")
        self._unreadable = 0

    def add(self, events: list[Instant], file_index: Ints) -> None:
        """Take the instant events of a block over; `file_index` says where each stands."""
        at_ns = self._times("ts", [event.ts for event in events], file_index)
        is_memory = bytes([event.name == MEMORY_EVENT_NAME for event in events])
        counts = np.frombuffer(is_memory, np.bool_)
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
