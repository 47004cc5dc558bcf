"""Kineto files (PyTorch 1.8 to 2.13, NVIDIA, AMD and CPU-only) to columns.

Events are decoded block by block (`kineto_json`), and a block's structures are gone once their
values stand in columns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import compress
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Floats, Ints
from perfmodel.errors import TraceError
from perfmodel.trace.categories import (
    CATEGORY_OF_TEXT,
    DEVICE_CATEGORIES,
    OLD_ANNOTATION_NAME,
    UNUSED_CATEGORIES,
    Category,
)
from perfmodel.trace.columns import NONE, DeviceProperties, RankTrace, Strings, rank_of_columns
from perfmodel.trace.event_columns import (
    AllocationRows,
    EventColumns,
    TextRows,
    floats,
    times_ns,
    whole_numbers,
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

_CHUNK_BYTES = 1 << 18
_MAX_NAMED = 4
_MAX_WARPS_PER_SM = 64
"""What Kineto's occupancy is a share of, on the data-centre GPUs."""
_NO_ARGS = Args()
_OCCUPANCY = ("blocks_per_sm", "warps_per_sm", "occupancy_pct")

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
    """As they stand in JSON."""
    floats: tuple[str, ...] = ()


def _of(*categories: Category) -> bytes:
    return bytes(code in categories for code in range(256))


_GROUPS = (
    _Group(
        _of(*_HOST),
        ("op_id", "sequence", "forward_thread"),
        ("input_shapes", "input_dtypes", "input_values", "input_strides"),
    ),
    _Group(_of(*_LINKED), ("correlation",)),
    _Group(_of(*{*Category}.difference(_LINKED)), ("event_index",)),
    _Group(_of(*DEVICE_CATEGORIES), ("stream", "device", "size_bytes"), ("grid",), _OCCUPANCY),
    _Group(
        _of(Category.CUDA_SYNC), ("sync_stream", "sync_source_stream", "sync_record_correlation")
    ),
)
_OF_OPERATORS = _Group(_of(*_HOST, *_LINKED), ("external_id", "old_external_id"))
"""Old files write the key in small letters. Those of them that name a collective have more."""
_COLLECTIVES = _Group(
    b"",
    ("group_size", "in_elements", "out_elements"),
    ("collective_dtype", "in_split", "out_split"),
)


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
    columns = rows.columns.taken()
    start_ns, duration_ns = columns.pop("start_ns"), columns.pop("duration_ns")
    for at in np.flatnonzero(duration_ns < 0)[:1].tolist():
        raise TraceError(
            f"{where}: traceEvents[{columns['file_index'][at]}].dur: "
            f"{duration_ns[at] / 1e3:g} us is negative; the file is damaged"
        )
    old = columns.pop("old_external_id", None)
    if old is not None:
        ids = columns.get("external_id", old)
        columns["external_id"] = np.where(ids == NONE, old, ids)
    columns["waves"] = _waves(*(columns.pop(name, np.zeros(len(rows))) for name in _OCCUPANCY))
    distributed = file.distributedInfo or Distributed()
    rank = rank_of_columns(
        where,
        rows.categories(columns["name"]),
        start_ns,
        duration_ns,
        columns,
        rank=NONE if distributed.rank is None else distributed.rank,
        world_size=distributed.world_size,
        strings=rows.strings,
        devices=tuple(DeviceProperties(d.name, d.totalGlobalMem) for d in file.deviceProperties),
    )
    origin_ns = rank.origin_ns + file.baseTimeNanoseconds
    if abs(origin_ns) >= 2**63:
        raise TraceError(f"{where}: baseTimeNanoseconds {file.baseTimeNanoseconds}: out of range")
    memory = rows.memory.found(rank.origin_ns)
    warnings = [*rows.left_out(), *rank.warnings]
    return replace(rank, origin_ns=origin_ns, memory=memory, warnings=warnings)


def _waves(blocks: Floats, warps: Floats, occupancy_pct: Floats) -> Floats:
    """How many times over each kernel's blocks fill the device; 0 where the file is silent."""
    resident_warps = occupancy_pct / 100 * _MAX_WARPS_PER_SM
    is_known = (blocks > 0) & (resident_warps > 0)
    result: Floats = np.zeros(len(blocks))
    np.divide(warps, resident_warps, out=result, where=is_known)
    return result


class _EventRows:
    """The complete events read so far, as columns."""

    def __init__(self, where: str) -> None:
        self.strings = Strings()
        self.columns = EventColumns()
        self.memory = AllocationRows()
        self._where = where
        self._category = bytearray()
        self._raw_texts = TextRows(self.strings)
        self._codes = defaultdict(lambda: Category.OTHER, CATEGORY_OF_TEXT)
        """By category's text; 0 for all others that were come across, which it then holds."""
        self._file_count = self._begun = 0

    def __len__(self) -> int:
        return len(self._category)

    def categories(self, name: Ints) -> NDArray[np.uint8]:
        """The category of each; old files call their annotations operators."""
        category = np.frombuffer(self._category, np.uint8)
        if Category.ANNOTATION not in self._category:
            matches = [OLD_ANNOTATION_NAME.match(t) is not None for t in self.strings.texts]
            is_old = np.array([*matches, False])
            category[is_old[name] & (category == Category.CPU_OP)] = Category.ANNOTATION
        return category

    def left_out(self) -> Iterator[str]:
        """Warnings of events that are not read, and may have been meant to be."""
        if odd := self.memory.unreadable:
            yield f"{odd} allocations are left out: a size or total of them is no whole number"
        if self._begun:
            yield f"{self._begun} events are left out: their ends are events of their own (ph B, E)"
        others = [text for text, code in self._codes.items() if not code]
        unknown = sorted({*others} - UNUSED_CATEGORIES)
        some = ", ".join(map(repr, unknown[:_MAX_NAMED]))
        if unknown:
            yield f"events of {len(unknown)} categories that are not known are left out: {some}"

    def add(self, events: list[Event]) -> None:
        kinds = bytes(map(_KINDS.__getitem__, map(type, events)))
        complete, at = _of_kind(events, kinds, _COMPLETE)
        category = bytes(list(map(self._codes.__getitem__, [event.cat for event in complete])))
        first, put = len(self), self.columns.put
        self._category += category
        self.columns.count = len(self)
        block = slice(first, len(self))
        put("file_index", block, (at + self._file_count).astype(np.int32))
        put("name", block, self.strings.of([event.name for event in complete]))
        put("pid", block, whole_numbers([event.pid for event in complete]))
        put("thread", block, whole_numbers([event.tid for event in complete]))
        put("start_ns", block, self._times("ts", complete, at))
        put("duration_ns", block, self._times("dur", complete, at))
        args = [event.args or _NO_ARGS for event in complete]
        for group in _GROUPS:
            self._put(group, *_among(group, category, args, first))
        of_operators, rows = _among(_OF_OPERATORS, category, args, first)
        self._put(_OF_OPERATORS, of_operators, rows)
        is_named = [each.collective is not None for each in of_operators]
        if any(is_named):
            named, rows = list(compress(of_operators, is_named)), rows[is_named]
            put("collective", rows, self.strings.of([each.collective for each in named]))
            put("process_group", rows, self.strings.of([each.process_group for each in named]))
            self._put(_COLLECTIVES, named, rows)
        if _INSTANT in kinds:
            instants, at = _of_kind(events, kinds, _INSTANT)
            self.memory.add(instants, self._times("ts", instants, at))
        self._file_count += len(events)
        self._begun += kinds.count(_BEGIN)

    def _times(self, key: str, events: list[Any], at: Ints) -> Ints:
        values = list(map(attrgetter(key), events))
        value_ns, wrong = times_ns(values)
        if wrong >= 0:
            result = bytes(values[wrong])[:30].decode(errors="replace")
            raise TraceError(
                f"{self._where}: traceEvents[{at[wrong] + self._file_count}].{key}: "
                f"expected microseconds, found {result}"
            )
        return value_ns

    def _put(self, group: _Group, args: list[Args], rows: Ints) -> None:
        """Fields of these args, of the events in these rows, into the columns of their names."""
        for name in group.integers if args else ():
            values = list(map(attrgetter(name), args))
            if values[0] != NONE or values.count(NONE) < len(values):
                self.columns.put(name, rows, whole_numbers(values))
        for name in group.floats if args else ():
            self.columns.put(name, rows, floats(list(map(attrgetter(name), args))))
        if group.texts and args:
            raw = [list(map(attrgetter(name), args)) for name in group.texts]
            if not all(each[0] is NO_RAW and each.count(NO_RAW) == len(each) for each in raw):
                of_each = map(b"\1".join, zip(*raw, strict=True))  # JSON holds no such byte
                for name, values in zip(group.texts, self._raw_texts.of(of_each), strict=True):
                    self.columns.put(name, rows, values)


def _among(group: _Group, category: bytes, args: list[Args], first: int) -> tuple[list[Args], Ints]:
    """The args of those events of a block that are of the group, and their rows."""
    is_among = category.translate(group.is_among)
    at = np.flatnonzero(np.frombuffer(is_among, np.bool_))
    return list(compress(args, is_among)), (at + first).astype(np.int32)


def _of_kind(events: list[Any], kinds: bytes, kind: int) -> tuple[list[Any], Ints]:
    """The events of a block that are of this kind, and where they stand in it."""
    is_kind = np.frombuffer(kinds, np.uint8) == kind
    return list(compress(events, is_kind.tobytes())), np.flatnonzero(is_kind)
