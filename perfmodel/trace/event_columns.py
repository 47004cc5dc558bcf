"""Columns of events that come in blocks: whole numbers, texts as codes, times, allocations."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from decimal import Context, Decimal, InvalidOperation
from itertools import chain, compress
from operator import attrgetter
from struct import error, pack
from typing import Any
from zlib import crc32

import msgspec
import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Floats, Ints
from perfmodel.trace.columns import NONE, Allocations, Strings
from perfmodel.trace.kineto_json import Instant, MemoryArgs


def whole_numbers(values: Sequence[Any]) -> Ints:
    """Of 32 bits each, or 64 where one needs it; texts as `_integer` has them."""
    for kind in "iq":
        try:
            return np.frombuffer(pack(f"{len(values)}{kind}", *values), kind)
        except error:
            pass
    known = {value: _integer(value) for value in set(values)}
    return np.array([known[value] for value in values], np.int64)


def _integer(value: int | str) -> int:
    """An integer as it is; the text of one parsed; any other text as its stable hash."""
    try:
        number = int(value)
    except ValueError:
        return crc32(str(value).encode())
    return number if -(2**63) <= number < 2**63 else NONE


def floats(values: Sequence[Any]) -> Floats:
    """Numbers as they are, 0 for each text."""
    try:
        return np.frombuffer(pack(f"{len(values)}d", *values))
    except error:
        return np.array([0.0 if isinstance(value, str) else value for value in values])


class EventColumns:
    """Columns over all events; each block says a part of some of them."""

    def __init__(self) -> None:
        self.count = 0
        self._parts: defaultdict[str, list[tuple[Any, NDArray[Any]]]] = defaultdict(list)

    def put(self, name: str, rows: Ints | slice, values: NDArray[Any]) -> None:
        self._parts[name].append((rows, values))

    def taken(self) -> dict[str, NDArray[Any]]:
        """All columns of which a block said something, `NONE` where none did."""
        columns = {}
        while self._parts:
            name, parts = self._parts.popitem()
            kind = max((values.dtype for _, values in parts), key=lambda each: each.itemsize)
            columns[name] = np.full(self.count, NONE, kind)
            for rows, values in parts:
                columns[name][rows] = values
        return columns


class TextRows(dict[bytes, tuple[int, ...]]):
    """Texts of one event, a byte 1 between them, to their indices; `NONE` for an empty one."""

    def __init__(self, strings: Strings) -> None:
        self._strings = strings

    def __missing__(self, row: bytes) -> tuple[int, ...]:
        texts = [text.decode() or None for text in row.split(b"\1")]
        indices = self[row] = tuple(map(self._strings.intern, texts))
        return indices

    def of(self, rows: Iterable[bytes]) -> NDArray[np.int32]:
        """`[text, event]`: the index of each."""
        return np.array(list(map(self.__getitem__, rows)), np.int32).T


_NUMBER = re.compile(rb"-?\d+(\.\d+)?([eE][-+]?\d{1,3})?")
_PLAIN = b"0123456789.,"
_FRACTION_DIGITS = 3
_LIMIT_NS = 2**62
_MAX_DIGITS = 18


def times_ns(values: Sequence[Any]) -> tuple[Ints, int]:
    """Microseconds, numbers or their JSON, as nanoseconds; and the place of the first that is no
    number, or -1."""
    if not values or isinstance(values[0], msgspec.Raw):
        value_ns, is_known = nanoseconds(list(map(_unquoted, values)))
        return value_ns, -1 if is_known.all() else int(np.argmin(is_known))
    try:
        return np.frombuffer(pack(f"{len(values)}q", *values), np.int64) * 1000, -1
    except error:
        return rounded_ns(floats(values)), -1


def _unquoted(value: msgspec.Raw) -> bytes:
    """A number that may be written as a text; no number for any other."""
    text = bytes(value)
    if text.startswith(b'"'):
        text = text[1:-1].strip()
        return text if _NUMBER.fullmatch(text) else b"null"
    return text


def rounded_ns(values_us: Floats) -> Ints:
    """Microseconds as the nearest nanoseconds, exactly for those written with three digits: below
    2**43 us (100 days) a float64 is off by less than half a nanosecond."""
    whole_us: Floats = np.floor(values_us)
    part_ns: Floats = np.rint((values_us - whole_us) * 10**_FRACTION_DIGITS)
    result: Ints = whole_us.astype(np.int64) * 10**_FRACTION_DIGITS + part_ns.astype(np.int64)
    return result


def nanoseconds(tokens: Sequence[bytes]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """JSON values in microseconds as int64 nanoseconds, and which of them are numbers.

    Plain decimals (`1712195495519689.047`) are parsed all at once; where another spelling occurs,
    one at a time. Digits below a nanosecond are cut. A value that is no finite number within +-146
    years gives 0 and False. Each token must be one valid JSON value.
    """
    if not tokens:
        return np.zeros(0, np.int64), np.ones(0, np.bool_)
    text = b",".join(tokens)
    if not text.translate(None, _PLAIN) and (value := _parse_plain(text, len(tokens))) is not None:
        return value, np.ones(len(tokens), np.bool_)
    exact = [_parse_exact(token) for token in tokens]
    known = np.array([each is not None for each in exact])
    return np.array([each or 0 for each in exact], np.int64), known


def _parse_plain(text: bytes, count: int) -> Ints | None:
    """`count` comma-separated decimals times 1000, cut to integers; None where one is too large or
    too long, or some have a fraction and others none."""
    numbers = np.fromstring(text.replace(b".", b","), np.int64, sep=",")
    whole_us, part_ns = numbers, np.zeros(count, np.int64)
    if b"." in text:
        char = np.frombuffer(text + b",", np.uint8)
        dot, end = np.flatnonzero(char == ord(".")), np.flatnonzero(char == ord(","))
        digits = end - dot - 1 if len(dot) == count else np.zeros(0)
        if not len(digits) or digits.max() > _MAX_DIGITS:
            return None
        whole_us, part_ns = numbers[::2], numbers[1::2]
        scale = 10 ** np.abs(digits - _FRACTION_DIGITS)
        part_ns = np.where(digits < _FRACTION_DIGITS, part_ns * scale, part_ns // scale)
    # Too large integers are saturated.
    return whole_us * 1000 + part_ns if whole_us.max() < _LIMIT_NS // 1000 else None


def _parse_exact(token: bytes) -> int | None:
    try:
        number = Decimal(token.decode())  # exact, whatever its length
        is_near = abs(number) < Decimal(_LIMIT_NS) / 1000
    except InvalidOperation:
        return None
    exact = Context(prec=len(token) + 4)
    return int(exact.multiply(number, Decimal(1000))) if is_near else None


_ALLOCATION_COLUMNS = (
    *("device_type", "device", "size_bytes", "address", "allocated_bytes", "reserved_bytes"),
)
"""Those of `Allocations` behind its times."""
_NO_ARGS = MemoryArgs()


class AllocationRows:
    """The allocations read so far."""

    def __init__(self) -> None:
        self._parts = [np.zeros((0, 1 + len(_ALLOCATION_COLUMNS)), np.int64)]
        self._numbers: list[Any] = []
        self.unreadable = 0
        """Left out: a size or a total of them is no whole number."""

    def add(self, events: list[Instant], at_ns: Ints) -> None:
        """Take the instant events of a block over, which happened at these times."""
        self._numbers += [event.args.event_index for event in events if event.args]
        is_memory = np.array([event.name == "[memory]" for event in events], np.bool_)
        args = [event.args or _NO_ARGS for event in compress(events, is_memory)]
        rows = list(map(attrgetter(*_ALLOCATION_COLUMNS), args))
        is_whole = np.ones(len(rows), np.bool_)
        try:
            content = pack(f"{len(rows) * len(_ALLOCATION_COLUMNS)}q", *chain(*rows))
        except error:
            is_whole[:] = [all(map(_is_whole, row)) for row in rows]
            content = np.array(list(compress(rows, is_whole)), np.int64).tobytes()
        table = np.frombuffer(content, np.int64).reshape(-1, len(_ALLOCATION_COLUMNS))
        self._parts.append(np.column_stack([at_ns[is_memory][is_whole], table]))
        self.unreadable += len(rows) - len(table)

    def found(self, first_ns: int) -> Allocations:
        """All of them, their times after `first_ns`."""
        table = np.concatenate(self._parts).T
        at_ns, *columns = table[:, np.argsort(table[0], kind="stable")]
        numbers = [each for each in self._numbers if _is_whole(each) and each >= 0]
        return Allocations(
            (at_ns - first_ns) / 1e3,
            **dict(zip(_ALLOCATION_COLUMNS, columns, strict=True)),
            numbers=np.array(numbers, np.int64),
        )


def _is_whole(value: Any) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63
