"""Kineto files (PyTorch 1.8 to 2.13, NVIDIA, AMD and CPU-only) to columns.

Events are decoded block by block (`kineto_json`), and a block's structures are gone once their
values stand in columns. Longer than 400 lines: one pass over the events, each of whose columns has
its own rule.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from functools import cached_property
from itertools import compress
from operator import attrgetter
from typing import Any, NamedTuple
from zlib import crc32

import msgspec
import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import Floats, Ints, Mask
from perfmodel.errors import TraceError
from perfmodel.trace.categories import (
    CATEGORY_OF_TEXT,
    DEVICE_CATEGORIES,
    OLD_ANNOTATION_NAME,
    Category,
)
from perfmodel.trace.columns import (
    NONE,
    DeviceProperties,
    GrowingColumn,
    RankTrace,
    Strings,
    Values,
    nanoseconds,
    rounded_ns,
)
from perfmodel.trace.kineto_json import (
    AllocationRows,
    Args,
    Complete,
    Distributed,
    Document,
    Event,
    ExactComplete,
    ExactInstant,
    Instant,
    Metadata,
)
from perfmodel.trace.window import Window

_CHUNK_BYTES = 1 << 18
_MAX_WARPS_PER_SM = 64
"""What Kineto's occupancy is a share of, on the data-centre GPUs."""
_NO_ARGS = Args()
_INTEGER_COLUMNS = (
    *("file_index", "name", "pid", "thread", "stream", "device", "correlation"),
    *("op_id", "sequence", "input_shapes", "input_dtypes", "size_bytes", "grid"),
    *("input_values", "input_strides", "collective_dtype", "in_split", "out_split"),
    *("collective", "process_group", "group_size", "in_elements", "out_elements"),
    *("sync_stream", "sync_source_stream", "sync_record_correlation"),
)
"""The columns that `_EventRows.column` gives as they are."""
_WIDE = ("start_ns", "duration_ns", "size_bytes", "in_elements", "out_elements")
"""Columns of int64; other integers are ids and indices, int32 or, where one needs it, int64."""


class _Codes(dict[Any, int]):
    """Codes by what they stand for; 0 for all else."""

    def __missing__(self, key: object) -> int:
        return 0


_CODE_OF_TEXT = _Codes({text: int(category) for text, category in CATEGORY_OF_TEXT.items()})
_COMPLETE, _INSTANT, _METADATA = 1, 2, 3
_KINDS = _Codes(
    {
        **dict.fromkeys((Complete, ExactComplete), _COMPLETE),
        **dict.fromkeys((Instant, ExactInstant), _INSTANT),
        Metadata: _METADATA,
    }
)
_LINKED = (*DEVICE_CATEGORIES, Category.CUDA_SYNC, Category.RUNTIME)
_HOST = (Category.CPU_OP, Category.ANNOTATION)


class _Group(NamedTuple):
    """Events of which the same fields of args are kept, in columns of the same names."""

    is_among: bytes
    """0 or 1 per code of a category: what `bytes.translate` takes."""
    integers: tuple[str, ...] = ()
    raw_texts: tuple[str, ...] = ()
    """As they stand in JSON."""
    floats: tuple[str, ...] = ()


def _of(*categories: Category) -> bytes:
    return bytes(code in categories for code in range(256))


_IS_DEVICE = _of(*DEVICE_CATEGORIES)
_GROUPS = (
    _Group(_of(*{*Category}.difference(_LINKED)), ("event_index",)),
    _Group(
        _of(*_HOST),
        ("op_id", "sequence"),
        ("input_shapes", "input_dtypes", "input_values", "input_strides"),
    ),
    _Group(_of(*_LINKED), ("correlation",)),
    _Group(_IS_DEVICE, ("stream", "device", "size_bytes"), ("grid",)),
    _Group(
        _of(Category.CUDA_SYNC), ("sync_stream", "sync_source_stream", "sync_record_correlation")
    ),
    _Group(_of(Category.KERNEL), floats=("blocks_per_sm", "warps_per_sm", "occupancy_pct")),
    _Group(_of(*_HOST, *_LINKED), ("external_id", "old_external_id")),
)
_COLLECTIVES = _Group(
    _of(*_HOST, *_LINKED),
    ("group_size", "in_elements", "out_elements"),
    ("collective_dtype", "in_split", "out_split"),
)


def decode_kineto(
    content: bytes | Iterable[bytes], where: str, window: Window | None = None
) -> RankTrace:
    """One Kineto JSON document, whole or in chunks, as columns; `where` names it in errors.

    With a `window`, only the events in it; all are checked.

    Raises `TraceError`, naming the place, when it is no JSON, when a field has the wrong type,
    when a time is not a number, or when a duration is negative.
    """
    if isinstance(content, bytes):
        whole, starts = content, range(0, len(content), _CHUNK_BYTES)
        content = (whole[at : at + _CHUNK_BYTES] for at in starts)
    document = Document(content, where)
    rows = _EventRows(where, window)
    for events in document:
        rows.add(events)
    file = document.file
    start_ns, duration_ns = rows.column("start_ns"), rows.column("duration_ns")
    event_index = rows.column("event_index")
    order = _order(start_ns, duration_ns, event_index)
    columns: dict[str, Any] = {name: rows.column(name, order) for name in _INTEGER_COLUMNS}
    first_ns = int(start_ns.min()) if len(rows) else 0
    origin_ns = first_ns + file.baseTimeNanoseconds
    if abs(origin_ns) >= 2**63:
        raise TraceError(f"{where}: baseTimeNanoseconds {file.baseTimeNanoseconds}: out of range")
    distributed = file.distributedInfo or Distributed()
    return RankTrace(
        where=where,
        rank=NONE if distributed.rank is None else distributed.rank,
        world_size=distributed.world_size,
        origin_ns=origin_ns,
        strings=rows.strings,
        devices=tuple(
            DeviceProperties(d.name, d.totalGlobalMem, d.numSms) for d in file.deviceProperties
        ),
        thread_names=rows.thread_names,
        category=rows.categories(order, columns["name"]),
        start_us=(start_ns[order] - first_ns) / 1e3,
        duration_us=duration_ns[order] / 1e3,
        waves=rows.waves()[order],
        external_id=rows.external_ids()[order],
        event_index=event_index[order],
        **columns,
        memory=rows.memory.found(first_ns),
    )


def _order(start_ns: Ints, duration_ns: Ints, event_index: Ints) -> Ints:
    """Rows by start, then longest first, then `Ev Idx`, then as they stand in the file."""
    order = np.argsort(start_ns, kind="stable")
    start_ns = start_ns[order]
    is_same = np.zeros(len(order) + 1, np.bool_)
    is_same[1:-1] = start_ns[1:] == start_ns[:-1]
    tied = np.flatnonzero(is_same[1:] | is_same[:-1])
    rows = order[tied]
    order[tied] = rows[np.lexsort((event_index[rows], -duration_ns[rows], start_ns[tied]))]
    return order


class _EventRows:
    """The complete events read so far, as columns."""

    def __init__(self, where: str, window: Window | None = None) -> None:
        self._window = window
        self.strings = Strings()
        self.thread_names: dict[int, str] = {}
        self.memory = AllocationRows(self._times, window)
        self._where = where
        self._names = _TextIndex(self.strings, None)
        self._raw_texts = _TextIndex(self.strings, b"")
        self._category = bytearray()
        self._columns: dict[str, GrowingColumn] = {}
        self._groups: dict[str, _Group | None] = {}
        self._file_count = 0

    def __len__(self) -> int:
        return len(self._category)

    def column(self, name: str, order: Ints | None = None) -> NDArray[Any]:
        """The rows of a column in this order, or as they stand in the file; once each.

        Columns of which the file says nothing are one array, read-only.
        """
        column = self._columns.pop(name, None)
        values = column.taken() if column is not None else None
        if values is None:
            return self._blank
        if name in _WIDE:
            values = values.astype(np.int64, copy=False)
        group = self._groups[name]
        if group is not None:
            of_group, values = values, np.full(len(self), NONE, values.dtype)
            values[self._is_among(group.is_among)] = of_group
        return values if order is None else values[order]

    @cached_property
    def _blank(self) -> Ints:
        blank = np.full(len(self), NONE, np.int32)
        blank.flags.writeable = False
        return blank

    def _is_among(self, table: bytes) -> Mask:
        return np.frombuffer(self._category.translate(table), np.bool_)

    def waves(self) -> Floats:
        """How many times over each kernel's blocks fill the device; 0 where the file is silent."""
        blocks, warps = self.column("blocks_per_sm"), self.column("warps_per_sm")
        resident_warps = self.column("occupancy_pct") / 100 * _MAX_WARPS_PER_SM
        is_known = (blocks > 0) & (resident_warps > 0)
        result: Floats = np.zeros(len(self))
        np.divide(warps, resident_warps, out=result, where=is_known)
        return result

    def external_ids(self) -> Ints:
        """`External id`, or `external id` where old files write that."""
        new, old = self.column("external_id"), self.column("old_external_id")
        return new if old is self._blank else np.where(new == NONE, old, new)

    def categories(self, order: Ints, name: Ints) -> NDArray[np.uint8]:
        """The categories; old files call their annotations operators."""
        category = np.frombuffer(self._category, np.uint8)[order]
        if Category.ANNOTATION not in self._category:
            matches = [OLD_ANNOTATION_NAME.match(t) is not None for t in self.strings.texts]
            is_old = np.array([*matches, False])
            category[is_old[name] & (category == Category.CPU_OP)] = Category.ANNOTATION
        return category

    def add(self, events: list[Event]) -> None:
        """Take a block of events over."""
        kinds = bytes(map(_KINDS.__getitem__, map(type, events)))
        complete, at = _of_kind(events, kinds, _COMPLETE)
        if complete:
            at += self._file_count
            if self._window is not None:
                complete, at = self._within(self._window, complete, at)
            if complete:
                self._add_event_fields(complete, at)
        if _INSTANT in kinds:
            instants, at = _of_kind(events, kinds, _INSTANT)
            self.memory.add(instants, at + self._file_count)
        if _METADATA in kinds:
            for event in _of_kind(events, kinds, _METADATA)[0]:
                if event.name == "thread_name" and event.args:
                    self.thread_names[_integer(event.tid)] = event.args.name
        self._file_count += len(events)

    def _within(
        self, window: Window, events: list[Complete], at: Ints
    ) -> tuple[list[Complete], Ints]:
        """Those of a block's events that lie in the window, and where they stand in the file."""
        category = bytes([_CODE_OF_TEXT[event.cat] for event in events])
        start_ns = self._times("ts", [event.ts for event in events], at)
        keep = window.keeps(start_ns, np.frombuffer(category.translate(_IS_DEVICE), np.bool_))
        return list(compress(events, keep.tobytes())), at[keep]

    def _add_event_fields(self, events: list[Complete], file_index: Ints) -> None:
        category = bytes([_CODE_OF_TEXT[event.cat] for event in events])
        self._category += category
        self._put("file_index", file_index)
        self._put("name", self._names.of([event.name for event in events]))
        self._put("pid", _integers([event.pid for event in events]))
        self._put("thread", _integers([event.tid for event in events]))
        self._put("start_ns", self._times("ts", [event.ts for event in events], file_index))
        duration_ns = self._times("dur", [event.dur for event in events], file_index)
        self._put("duration_ns", duration_ns)
        at = int(np.argmin(duration_ns))
        if duration_ns[at] < 0:
            raise TraceError(
                f"{self._where}: traceEvents[{file_index[at]}].dur: {duration_ns[at] / 1e3:g} us "
                "is negative; the file is damaged"
            )
        all_args = [event.args or _NO_ARGS for event in events]
        for group in _GROUPS:
            self._put_group(group, list(compress(all_args, category.translate(group.is_among))))
        self._put_collectives(list(compress(all_args, category.translate(_COLLECTIVES.is_among))))

    def _times(self, key: str, values: list[Any], file_index: Ints) -> Ints:
        if values and not isinstance(values[0], msgspec.Raw):
            return rounded_ns(np.array(array("d", values)))
        value_ns, is_known = nanoseconds(values)
        if not is_known.all():
            at = int(np.argmin(is_known))
            result = bytes(values[at])[:30].decode(errors="replace")
            raise TraceError(
                f"{self._where}: traceEvents[{file_index[at]}].{key}: "
                f"expected microseconds, found {result}"
            )
        return value_ns

    def _put_group(self, group: _Group, args: list[Args]) -> None:
        """Fields of args into the columns of their names."""
        if not args:
            return
        for name in group.integers:
            values = list(map(attrgetter(name), args))
            if values.count(NONE) < len(values):
                self._put(name, _integers(values), group)
            else:
                self._column(name, group).skip(len(values))
        for name in group.floats:
            self._put(name, _floats(list(map(attrgetter(name), args))), group)
        for name in group.raw_texts:
            text = b"\0".join(map(attrgetter(name), args))  # JSON holds no zero byte
            if text.strip(b"\0"):
                self._put(name, self._raw_texts.of(text.split(b"\0")), group)
            else:
                self._column(name, group).skip(len(args))

    def _put_collectives(self, args: list[Args]) -> None:
        names = [each.collective for each in args]
        if names.count(None) < len(names):
            args = [_NO_ARGS if each.collective is None else each for each in args]
            self._put("collective", self._names.of(names), _COLLECTIVES)
            processes = [each.process_group for each in args]
            self._put("process_group", self._names.of(processes), _COLLECTIVES)
            self._put_group(_COLLECTIVES, args)
            return
        for name in (
            "collective",
            "process_group",
            *_COLLECTIVES.integers,
            *_COLLECTIVES.raw_texts,
        ):
            self._column(name, _COLLECTIVES).skip(len(names))

    def _put(self, name: str, values: Values, group: _Group | None = None) -> None:
        self._column(name, group).extend(values)

    def _column(self, name: str, group: _Group | None) -> GrowingColumn:
        column = self._columns.get(name)
        if column is None:
            is_float = group is not None and name in group.floats
            column = self._columns[name] = GrowingColumn("d" if is_float else "q")
            self._groups[name] = group
        return column


def _of_kind(events: list[Any], kinds: bytes, kind: int) -> tuple[list[Any], Ints]:
    """The events of a block that are of this kind, and where they stand in it."""
    is_kind = np.frombuffer(kinds, np.uint8) == kind
    return list(compress(events, is_kind.tobytes())), np.flatnonzero(is_kind)


class _TextIndex(dict[Any, int]):
    """A text to its index in `strings`, where it is interned when it is first asked for."""

    def __init__(self, strings: Strings, none: bytes | None) -> None:
        self._strings = strings
        self[none] = NONE

    def __missing__(self, text: str | bytes) -> int:
        index = self._strings.intern(text if isinstance(text, str) else text.decode())
        self[text] = index
        return index

    def of(self, texts: list[Any]) -> array[int]:
        """The index of each."""
        return array("q", map(self.__getitem__, texts))


def _floats(values: list[Any]) -> array[float]:
    """Numbers as they are, 0 for each text."""
    try:
        return array("d", values)
    except TypeError:
        return array("d", [0.0 if isinstance(value, str) else value for value in values])


def _integers(values: list[Any]) -> array[int]:
    """Integers as they are, texts as `_integer` has them."""
    try:
        return array("q", values)
    except (TypeError, OverflowError):
        known = {value: _integer(value) for value in set(values)}
        return array("q", [known[value] for value in values])


def _integer(value: int | str) -> int:
    """An integer as it is; the text of one parsed; any other text as its stable hash."""
    try:
        number = int(value)
    except ValueError:
        return crc32(str(value).encode())
    return number if -(2**63) <= number < 2**63 else NONE
