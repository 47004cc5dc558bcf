"""Kineto files (PyTorch 1.8 to 2.13, NVIDIA, AMD and CPU-only) to columns.

Events are decoded block by block (`kineto_json`), and a block's structures are gone once their
values stand in columns.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from itertools import compress
from operator import attrgetter
from typing import Any
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
    nanoseconds,
)
from perfmodel.trace.kineto_json import (
    NO_RAW,
    AllocationRows,
    Args,
    Complete,
    Distributed,
    Document,
    Event,
    Instant,
    Metadata,
)
from perfmodel.trace.window import Window

_CHUNK_BYTES = 1 << 18
_MAX_WARPS_PER_SM = 64
"""What Kineto's occupancy is a share of, on the data-centre GPUs."""
_NO_ARGS = Args()
_COLLECTIVE_NUMBERS = ("group_size", "in_elements", "out_elements")
_COLLECTIVE_TEXTS = ("collective_dtype", "in_split", "out_split")
_INTEGER_COLUMNS = (
    *("file_index", "name", "pid", "thread", "stream", "device", "correlation", "external_id"),
    *("op_id", "sequence", "input_shapes", "input_dtypes", "size_bytes", "grid"),
    *("input_values", "input_strides", "collective_dtype", "in_split", "out_split"),
    *("collective", "process_group", "group_size", "in_elements", "out_elements"),
    *("sync_stream", "sync_source_stream", "sync_record_correlation"),
)
"""The columns that `_Rows.column` gives as they are."""
_DTYPES = {
    **dict.fromkeys(("start_ns", "duration_ns"), np.int64),
    **dict.fromkeys(("size_bytes", "in_elements", "out_elements"), np.int64),
    "category": np.uint8,
    "waves": np.float64,
}
"""Of columns that hold no ids or indices; those are int32, or int64 where one needs it."""

Categories = NDArray[np.uint8]


def _category_mask(*categories: Category) -> Mask:
    return np.isin(np.arange(len(Category)), categories)


class _Codes(dict[Any, int]):
    """Codes by what they stand for; 0 for all else."""

    def __missing__(self, key: object) -> int:
        return 0


_CODE_OF_TEXT = _Codes({text: int(category) for text, category in CATEGORY_OF_TEXT.items()})
_COMPLETE, _INSTANT, _METADATA = 1, 2, 3
_KINDS = _Codes({Complete: _COMPLETE, Instant: _INSTANT, Metadata: _METADATA})
_IS_KERNEL = _category_mask(Category.KERNEL)
_IS_DEVICE = _category_mask(*DEVICE_CATEGORIES)
_IS_SYNC = _category_mask(Category.CUDA_SYNC)
_IS_LINKED = _IS_DEVICE | _IS_SYNC | _category_mask(Category.RUNTIME)
_IS_HOST = _category_mask(Category.CPU_OP, Category.ANNOTATION)
_ARGS: tuple[tuple[Mask, tuple[str, ...], tuple[str, ...]], ...] = (
    (~_IS_LINKED, ("event_index",), ()),
    (
        _IS_HOST,
        ("op_id", "sequence"),
        ("input_shapes", "input_dtypes", "input_values", "input_strides"),
    ),
    (_IS_LINKED, ("correlation",), ()),
    (_IS_DEVICE, ("stream", "device", "size_bytes"), ("grid",)),
    (_IS_SYNC, ("sync_source_stream", "sync_record_correlation"), ()),
)
"""Categories, and the numbers and texts among their args that have columns."""


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
    in_file = np.arange(len(rows))
    start_ns = rows.column("start_ns", in_file)
    duration_ns = rows.column("duration_ns", in_file)
    event_index = rows.column("event_index", in_file)
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
        waves=rows.column("waves", order),
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
        self._names = _TextIndex(self.strings)
        self._raw_texts = _TextIndex(self.strings)
        self._raw_texts[b""] = NONE
        self._columns: dict[str, GrowingColumn] = {}
        self._has_annotations = False
        self._blank: Ints | None = None
        self._count = 0
        self._file_count = 0

    def __len__(self) -> int:
        return self._count

    def column(self, name: str, order: Ints) -> NDArray[Any]:
        """The rows of a column in this order.

        Columns of integers of which the file says nothing are one array, read-only.
        """
        column = self._columns.pop(name, None)
        if column is not None:
            return column.taken(order)
        if name == "waves":
            return np.zeros(self._count)
        if self._blank is None:
            self._blank = np.full(self._count, NONE, np.int32)
            self._blank.flags.writeable = False
        return self._blank

    def categories(self, order: Ints, name: Ints) -> NDArray[np.uint8]:
        """The categories; old files call their annotations operators."""
        category = self.column("category", order).astype(np.uint8)
        if not self._has_annotations:
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
        self._count += len(complete)
        self._file_count += len(events)

    def _within(
        self, window: Window, events: list[Complete], at: Ints
    ) -> tuple[list[Complete], Ints]:
        """Those of a block's events that lie in the window, and where they stand in the file."""
        category = np.array([_CODE_OF_TEXT[event.cat] for event in events])
        start_ns = self._times("ts", [event.ts for event in events], at)
        keep = window.keeps(start_ns, _IS_DEVICE[category])
        return list(compress(events, keep.tobytes())), at[keep]

    def _add_event_fields(self, events: list[Complete], file_index: Ints) -> None:
        category = np.frombuffer(bytes([_CODE_OF_TEXT[event.cat] for event in events]), np.uint8)
        self._has_annotations |= Category.ANNOTATION in category
        rows = slice(self._count, self._count + len(events))
        self._put("category", rows, category)
        self._put("file_index", rows, file_index)
        self._put("name", rows, _found(self._names, [event.name for event in events]))
        self._put("pid", rows, _integers([event.pid for event in events]))
        self._put("thread", rows, _integers([event.tid for event in events]))
        self._put("start_ns", rows, self._times("ts", [e.ts for e in events], file_index))
        duration_ns = self._times("dur", [e.dur for e in events], file_index)
        self._put("duration_ns", rows, duration_ns)
        at = int(np.argmin(duration_ns))
        if duration_ns[at] < 0:
            raise TraceError(
                f"{self._where}: traceEvents[{file_index[at]}].dur: {duration_ns[at] / 1e3:g} us "
                "is negative; the file is damaged"
            )
        self._add_args(category, [event.args or _NO_ARGS for event in events])

    def _times(self, key: str, tokens: list[msgspec.Raw], file_index: Ints) -> Ints:
        value_ns, is_known = nanoseconds(tokens)
        if not is_known.all():
            at = int(np.argmin(is_known))
            result = bytes(tokens[at])[:30].decode(errors="replace")
            raise TraceError(
                f"{self._where}: traceEvents[{file_index[at]}].{key}: "
                f"expected microseconds, found {result}"
            )
        return value_ns

    def _add_args(self, category: Categories, all_args: list[Args]) -> None:
        for among, numbers, texts in _ARGS:
            rows, args = self._pick(among, category, all_args)
            self._put_fields(rows, args, numbers, texts)
        rows, args = self._pick(_IS_KERNEL, category, all_args)
        self._put("waves", rows, _waves(args))
        rows, args = self._pick(_IS_SYNC, category, all_args)
        self._put("sync_stream", rows, _integers([a.stream for a in args]))
        rows, args = self._pick(_IS_HOST | _IS_LINKED, category, all_args)
        ids = _integers([a.external_id for a in args])
        old = np.flatnonzero(ids == NONE)
        ids[old] = _integers([args[at].old_external_id for at in old.tolist()])
        self._put("external_id", rows, ids)
        names = [a.collective for a in args]
        if names.count(None) == len(names):
            return
        at = [i for i, name in enumerate(names) if name is not None]
        rows, args = rows[at], [args[i] for i in at]
        intern = self.strings.intern
        self._put("collective", rows, np.array([intern(a.collective) for a in args]))
        self._put("process_group", rows, np.array([intern(a.process_group) for a in args]))
        self._put_fields(rows, args, _COLLECTIVE_NUMBERS, _COLLECTIVE_TEXTS)

    def _put_fields(
        self, rows: Ints, args: list[Args], numbers: tuple[str, ...], texts: tuple[str, ...]
    ) -> None:
        """Put fields of args into the columns of the same names: numbers, and texts as indices."""
        for name in numbers:
            self._put(name, rows, _integers(list(map(attrgetter(name), args))))
        for name in texts:
            values: list[msgspec.Raw] = list(map(attrgetter(name), args))
            if values.count(NO_RAW) < len(values):
                index = self._raw_texts
                parts = b"\0".join(values).split(b"\0")  # JSON holds no zero byte
                self._put(name, rows, _found(index, parts))

    def _pick(self, among: Mask, category: Categories, args: list[Args]) -> tuple[Ints, list[Args]]:
        """The rows of these categories, and their args."""
        is_among = among[category]
        return np.flatnonzero(is_among) + self._count, list(compress(args, is_among.tobytes()))

    def _put(self, name: str, rows: Ints | slice, values: NDArray[Any]) -> None:
        if not len(values):
            return
        column = self._columns.get(name)
        if column is None:
            missing = 0.0 if name in ("waves", "category") else NONE
            dtype = _DTYPES.get(name, np.int32)
            column = self._columns[name] = GrowingColumn(dtype, missing)
        column.put(rows, values)


def _of_kind(events: list[Any], kinds: bytes, kind: int) -> tuple[list[Any], Ints]:
    """The events of a block that are of this kind, and where they stand in it."""
    is_kind = np.frombuffer(kinds, np.uint8) == kind
    return list(compress(events, is_kind.tobytes())), np.flatnonzero(is_kind)


def _found(index: Mapping[Any, int], keys: list[Any]) -> Ints:
    return np.fromiter(map(index.__getitem__, keys), np.int64, len(keys))


class _TextIndex(dict[str | bytes, int]):
    """A text to its index in `strings`, where it is interned when it is first asked for."""

    def __init__(self, strings: Strings) -> None:
        self._strings = strings

    def __missing__(self, text: str | bytes) -> int:
        index = self._strings.intern(text if isinstance(text, str) else text.decode())
        self[text] = index
        return index


def _waves(kernels: list[Args]) -> Floats:
    """How many times over each kernel's blocks fill the device; 0 where the file does not tell."""
    blocks = _floats([a.blocks_per_sm for a in kernels])
    warps = _floats([a.warps_per_sm for a in kernels])
    resident_warps = _floats([a.occupancy_pct for a in kernels]) / 100 * _MAX_WARPS_PER_SM
    is_known = (blocks > 0) & (resident_warps > 0)
    return np.divide(warps, resident_warps, out=np.zeros(len(kernels)), where=is_known)


def _floats(values: list[Any]) -> Floats:
    """Numbers as they are, 0 for each text."""
    try:
        return np.frombuffer(array("d", values), np.float64)
    except TypeError:
        return np.array([0.0 if isinstance(value, str) else value for value in values])


def _integers(values: list[Any]) -> Ints:
    """Integers as they are, texts as `_integer` has them."""
    try:
        return np.frombuffer(array("q", values), np.int64)
    except (TypeError, OverflowError):
        known = {value: _integer(value) for value in set(values)}
        return np.array([known[value] for value in values])


def _integer(value: int | str) -> int:
    """An integer as it is; the text of one parsed; any other text as its stable hash."""
    try:
        number = int(value)
    except ValueError:
        return crc32(str(value).encode())
    return number if -(2**63) <= number < 2**63 else NONE
