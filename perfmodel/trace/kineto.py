"""Kineto files (PyTorch 1.8 to 2.13, NVIDIA, AMD and CPU-only) to columns.

Events are decoded block by block (`kineto_json`), and a block's structures are gone once their
values stand in columns.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import fields
from functools import cached_property
from itertools import compress
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Floats, Ints
from perfmodel.errors import TraceError
from perfmodel.trace.categories import (
    CATEGORY_OF_TEXT,
    DEVICE_CATEGORIES,
    OLD_ANNOTATION_NAME,
    UNREAD_ACCELERATORS,
    UNUSED_CATEGORIES,
    Category,
)
from perfmodel.trace.columns import (
    NONE,
    DeviceProperties,
    RankTrace,
    Strings,
    nanoseconds,
    rounded_ns,
)
from perfmodel.trace.event_columns import (
    AllocationRows,
    EventColumns,
    TextIndex,
    TextRows,
    packed,
    packed_floats,
    packed_integers,
    unquoted,
)
from perfmodel.trace.kineto_json import (
    NO_RAW,
    OTHERS,
    Args,
    Complete,
    Distributed,
    Document,
    Event,
    ExactComplete,
    ExactInstant,
    Instant,
)
from perfmodel.trace.repairs import stray_warnings, strays

_CHUNK_BYTES = 1 << 18
_MAX_NAMED = 4
_MAX_WARPS_PER_SM = 64
"""What Kineto's occupancy is a share of, on the data-centre GPUs."""
_NO_ARGS = Args()
_INTEGERS = tuple(each.name for each in fields(RankTrace) if each.type == "Ints")
_WIDE = ("start_ns", "duration_ns", "size_bytes", "in_elements", "out_elements")
"""Columns of int64; other integers are ids and indices, int32 or, where one needs it, int64."""


class _Codes(dict[Any, int]):
    """Codes by what they stand for; 0 for all else that was asked for, which it then holds."""

    def __missing__(self, key: object) -> int:
        self[key] = 0
        return 0


_COMPLETE, _INSTANT, _BEGIN = 1, 2, 3
_KINDS = {
    **dict.fromkeys(OTHERS, 0),
    OTHERS[0]: _BEGIN,
    **dict.fromkeys((Complete, ExactComplete), _COMPLETE),
    **dict.fromkeys((Instant, ExactInstant), _INSTANT),
}
_LINKED = (*DEVICE_CATEGORIES, Category.CUDA_SYNC, Category.RUNTIME)
_HOST = (Category.CPU_OP, Category.ANNOTATION)


class _Group(NamedTuple):
    """Events of which the same fields of args are kept, in columns of the same names."""

    is_among: bytes
    """0 or 1 per code of a category: what `bytes.translate` takes."""
    integers: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    """As they stand in JSON; what an event says in all of them is looked up once."""
    floats: tuple[str, ...] = ()
    has_links: bool = False


def _of(*categories: Category) -> bytes:
    return bytes(code in categories for code in range(256))


_IS_DEVICE = _of(*DEVICE_CATEGORIES)
_GROUPS = (
    _Group(
        _of(*_HOST),
        ("event_index", "op_id", "sequence", "forward_thread"),
        ("input_shapes", "input_dtypes", "input_values", "input_strides"),
        has_links=True,
    ),
    _Group(_of(*_LINKED), ("correlation",), has_links=True),
    _Group(
        _IS_DEVICE,
        ("stream", "device", "size_bytes"),
        ("grid",),
        ("blocks_per_sm", "warps_per_sm", "occupancy_pct"),
    ),
    _Group(
        _of(Category.CUDA_SYNC), ("sync_stream", "sync_source_stream", "sync_record_correlation")
    ),
    _Group(_of(*{*Category}.difference(_HOST, _LINKED)), ("event_index",)),
)
_COLLECTIVES = _Group(
    b"",
    ("group_size", "in_elements", "out_elements"),
    ("collective_dtype", "in_split", "out_split"),
)
"""Fields of those events of two groups that name a collective."""


def decode_kineto(content: bytes | Iterable[bytes], where: str) -> RankTrace:
    """One Kineto JSON document, whole or in chunks, as columns; `where` names it in errors.

    Raises `TraceError`, naming the place, when it is no JSON, when a field has the wrong type,
    when a time is not a number, or when a duration is negative.
    """
    if isinstance(content, bytes):
        whole, starts = content, range(0, len(content), _CHUNK_BYTES)
        content = (whole[at : at + _CHUNK_BYTES] for at in starts)
    document = Document(content, where)
    rows = _EventRows(where)
    for events in document:
        rows.add(events)
        del events
    file = document.file
    rows.end()
    start_ns, duration_ns = rows.column("start_ns"), rows.column("duration_ns")
    event_index = rows.column("event_index")
    order = _order(start_ns, duration_ns, event_index)
    is_stray = strays(start_ns, np.frombuffer(rows.codes, np.uint8))
    order = order[~is_stray[order]]
    columns: dict[str, Any] = {"event_index": event_index[order]}
    columns |= {name: rows.column(name, order) for name in _INTEGERS if name not in columns}
    for at in np.flatnonzero(duration_ns[order] < 0)[:1].tolist():
        raise TraceError(
            f"{where}: traceEvents[{columns['file_index'][at]}].dur: "
            f"{duration_ns[order[at]] / 1e3:g} us is negative; the file is damaged"
        )
    first_ns = int(start_ns[order].min()) if len(rows) else 0
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
        devices=tuple(DeviceProperties(d.name, d.totalGlobalMem) for d in file.deviceProperties),
        category=rows.categories(order, columns["name"]),
        start_us=(start_ns[order] - first_ns) / 1e3,
        duration_us=duration_ns[order] / 1e3,
        waves=rows.waves()[order],
        **columns,
        memory=rows.memory.found(first_ns),
        warnings=[*rows.left_out(), *stray_warnings(is_stray)],
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

    def __init__(self, where: str) -> None:
        self.strings = Strings()
        self.memory = AllocationRows(self._times)
        self._where = where
        self._names = TextIndex(self.strings, None)
        self._raw_texts = TextIndex(self.strings, b"")
        self._rows_of_texts: dict[tuple[str, ...], TextRows] = {}
        self._columns = EventColumns()
        self._codes = _Codes({text: int(code) for text, code in CATEGORY_OF_TEXT.items()})
        self._file_count = self._begun = 0

    def __len__(self) -> int:
        return len(self._columns.category)

    @property
    def codes(self) -> bytearray:
        """The category of each."""
        return self._columns.category

    def column(self, name: str, order: Ints | None = None) -> NDArray[Any]:
        """The rows of a column in this order, or as they stand in the file; once each.

        Columns of which the file says nothing are one array, read-only.
        """
        values = self._columns.taken(name)
        if values is None:
            return self._blank if order is None else self._blank[: len(order)]
        if name in _WIDE:
            values = values.astype(np.int64, copy=False)
        return values if order is None else values[order]

    def end(self) -> None:
        """Make the columns of texts, once all blocks are there."""
        for names, rows in self._rows_of_texts.items():
            for among, row in self._columns.parts(names).items():
                for name, texts in zip(names, rows.columns(len(names)), strict=True):
                    self._columns.set_part(name, among, texts[row])

    @cached_property
    def _blank(self) -> Ints:
        blank = np.full(len(self), NONE, np.int32)
        blank.flags.writeable = False
        return blank

    def waves(self) -> Floats:
        """How many times over each kernel's blocks fill the device; 0 where the file is silent."""
        blocks, warps = self.column("blocks_per_sm"), self.column("warps_per_sm")
        resident_warps = self.column("occupancy_pct") / 100 * _MAX_WARPS_PER_SM
        is_known = (blocks > 0) & (resident_warps > 0)
        result: Floats = np.zeros(len(self))
        np.divide(warps, resident_warps, out=result, where=is_known)
        return result

    def categories(self, order: Ints, name: Ints) -> NDArray[np.uint8]:
        """The categories; old files call their annotations operators."""
        category = np.frombuffer(self._columns.category, np.uint8)[order]
        if Category.ANNOTATION not in self._columns.category:
            matches = [OLD_ANNOTATION_NAME.match(t) is not None for t in self.strings.texts]
            is_old = np.array([*matches, False])
            category[is_old[name] & (category == Category.CPU_OP)] = Category.ANNOTATION
        return category

    def left_out(self) -> Iterator[str]:
        """Warnings of events that are not read, and may have been meant to be."""
        if self._begun:
            yield f"{self._begun} events are left out: their ends are events of their own (ph B, E)"
        others = [text for text, code in self._codes.items() if not code]
        for maker in sorted({UNREAD_ACCELERATORS[e] for e in others if e in UNREAD_ACCELERATORS}):
            yield f"what ran on the device is not known: events of {maker} are not read"
        unknown = sorted({*others} - UNUSED_CATEGORIES - {*UNREAD_ACCELERATORS})
        some = ", ".join(map(repr, unknown[:_MAX_NAMED]))
        if unknown:
            yield f"events of {len(unknown)} categories that are not known are left out: {some}"

    def add(self, events: list[Event]) -> None:
        """Take a block of events over."""
        kinds = bytes(map(_KINDS.__getitem__, map(type, events)))
        complete, at = _of_kind(events, kinds, _COMPLETE)
        if complete:
            self._add_event_fields(complete, at + self._file_count)
        if _INSTANT in kinds:
            instants, at = _of_kind(events, kinds, _INSTANT)
            self.memory.add(instants, at + self._file_count)
        self._file_count += len(events)
        self._begun += kinds.count(_BEGIN)

    def _add_event_fields(self, events: list[Complete], file_index: Ints) -> None:
        category = bytes(list(map(self._codes.__getitem__, [event.cat for event in events])))
        put = self._columns.put
        self._columns.category += category
        put("file_index", file_index)
        put("name", self._names.of([event.name for event in events]))
        put("pid", packed_integers([event.pid for event in events]))
        put("thread", packed_integers([event.tid for event in events]))
        put("start_ns", self._times("ts", [event.ts for event in events], file_index))
        put("duration_ns", self._times("dur", [event.dur for event in events], file_index))
        self._columns.close_block(None, len(events))
        all_args = [event.args or _NO_ARGS for event in events]
        for group in _GROUPS:
            self._put_group(group, all_args, category)

    def _times(self, key: str, values: list[Any], file_index: Ints) -> Ints:
        if values and not isinstance(values[0], msgspec.Raw):
            try:
                return np.frombuffer(packed("q", values), np.int64) * 1000
            except struct.error:
                return rounded_ns(np.frombuffer(packed("d", values)))
        value_ns, is_known = nanoseconds(list(map(unquoted, values)))
        if not is_known.all():
            at = int(np.argmin(is_known))
            result = bytes(values[at])[:30].decode(errors="replace")
            raise TraceError(
                f"{self._where}: traceEvents[{file_index[at]}].{key}: "
                f"expected microseconds, found {result}"
            )
        return value_ns

    def _put_group(self, group: _Group, args: list[Args], category: bytes) -> None:
        """Fields of those args that are the group's, by the category of each."""
        is_among = category.translate(group.is_among)
        if b"\1" not in is_among:
            return
        args = list(compress(args, is_among))
        self._put_fields(group, args, group.is_among)
        if group.has_links:
            ids = [each.external_id for each in args]
            if NONE in ids:  # old files write it in small letters
                old = [each.old_external_id for each in args]
                ids = [b if a == NONE else a for a, b in zip(ids, old, strict=True)]
            put = self._columns.put
            put("external_id", packed_integers(ids), group.is_among)
            names = [each.collective for each in args]
            if names.count(None) < len(names):
                named = [_NO_ARGS if each.collective is None else each for each in args]
                put("collective", self._names.of(names), group.is_among)
                processes = [each.process_group for each in named]
                put("process_group", self._names.of(processes), group.is_among)
                self._put_fields(_COLLECTIVES, named, group.is_among)
        self._columns.close_block(group.is_among, len(args))

    def _put_fields(self, group: _Group, args: list[Args], is_among: bytes) -> None:
        """Fields of args into the columns of their names."""
        none = packed("q", [NONE]) * len(args)
        for name in group.integers:
            if (values := packed_integers(list(map(attrgetter(name), args)))) != none:
                self._columns.put(name, values, is_among)
        for name in group.floats:
            self._columns.put(name, packed_floats(list(map(attrgetter(name), args))), is_among, "d")
        columns = [list(map(attrgetter(name), args)) for name in group.texts]
        if not all(raw[0] is NO_RAW and raw.count(NO_RAW) == len(raw) for raw in columns):
            rows = self._rows_of_texts.setdefault(group.texts, TextRows(self._raw_texts))
            of_each = map(b"\1".join, zip(*columns, strict=True))  # JSON holds no such byte
            self._columns.put(group.texts, rows.of(of_each), is_among)


def _of_kind(events: list[Any], kinds: bytes, kind: int) -> tuple[list[Any], Ints]:
    """The events of a block that are of this kind, and where they stand in it."""
    is_kind = np.frombuffer(kinds, np.uint8) == kind
    return list(compress(events, is_kind.tobytes())), np.flatnonzero(is_kind)
