"""The events of one rank as columns: filled while a file is decoded, put in order; as a frame."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Floats, Ints, Mask, has_code
from perfmodel.trace.categories import (
    COMMUNICATION_NAME,
    DEVICE_CATEGORIES,
    TELLING_CHARACTERS,
    Category,
)

if TYPE_CHECKING:
    import pandas as pd

NONE = -1
"""In an integer column: the file says nothing."""


class Strings:
    """Interned strings: text to index and back. Index -1 is no text."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._index: dict[str | None, int] = {None: NONE}

    def intern(self, text: str | None) -> int:
        index = self._index.setdefault(text, len(self.texts))
        if text is not None and index == len(self.texts):
            self.texts.append(text)
        return index

    def of(self, texts: Sequence[str | None]) -> Ints:
        """The index of each."""
        for text in dict.fromkeys(texts):
            self.intern(text)
        return np.array(list(map(self._index.__getitem__, texts)), np.int32)

    def __getitem__(self, index: int) -> str:
        return self.texts[index] if index >= 0 else ""

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True)
class DeviceProperties:
    """What the trace says of one GPU."""

    name: str
    memory_bytes: int = 0


_DEVICE_TYPES = {0: "cpu", 1: "cuda", 6: "hip", 12: "xpu", 13: "mps"}
"""`Device Type` of an allocation: numbers of c10::DeviceType."""


def _no_ints() -> Ints:
    return np.zeros(0, np.int64)


@dataclass(frozen=True)
class Allocations:
    """Allocations and frees of one rank in order of time; one entry per event.

    `size_bytes` is below 0 where memory was freed. Totals are those after the event, and `NONE`
    where the file gives none (before PyTorch 1.10).
    """

    at_us: Floats = field(default_factory=lambda: np.zeros(0))
    device_type: Ints = field(default_factory=_no_ints)
    device: Ints = field(default_factory=_no_ints)
    size_bytes: Ints = field(default_factory=_no_ints)
    address: Ints = field(default_factory=_no_ints)
    allocated_bytes: Ints = field(default_factory=_no_ints)
    reserved_bytes: Ints = field(default_factory=_no_ints)
    numbers: Ints | None = None
    """`Ev Idx` of all instant events that have one, in no order; None where a format has no such
    events (exports, frames), so that a gap between numbers says nothing."""

    def __len__(self) -> int:
        return len(self.at_us)

    def of(self, chosen: Mask) -> Allocations:
        columns = {name: value[chosen] for name, value in vars(self).items() if name in _PER_EVENT}
        return replace(self, **columns)

    def by_device(self) -> dict[str, Allocations]:
        """Per device (`cuda:0`, `cpu`) its events, devices in order of their first one."""
        types, type_of = np.unique(self.device_type, return_inverse=True)
        devices, device_of = np.unique(self.device, return_inverse=True)
        pair_of = type_of * len(devices) + device_of
        pairs, first = np.unique(pair_of, return_index=True)
        parts = {}
        for pair in pairs[np.argsort(first)].tolist():
            kind, index = int(types[pair // len(devices)]), int(devices[pair % len(devices)])
            name = _DEVICE_TYPES.get(kind, f"type {kind}")
            name = name if index < 0 or not kind else f"{name}:{index}"
            parts[name] = self.of(pair_of == pair)
        return parts


_PER_EVENT = tuple(each.name for each in fields(Allocations))[:-1]


@dataclass(frozen=True)
class RankTrace:
    """One rank's complete events ('X'), in order of start, then longest first, then `Ev Idx`.

    All columns have one row per event; integers are `NONE` where the file says nothing. Ids and
    indices are int32, or int64 where one of the column needs it; bytes and elements are int64.
    Times are float64 microseconds after `origin_ns` (int64 nanoseconds of the profiler's clock).
    """

    where: str
    rank: int
    world_size: int | None
    origin_ns: int
    strings: Strings
    devices: tuple[DeviceProperties, ...]
    file_index: Ints
    """Row of the event in the file's event list."""
    name: Ints
    category: NDArray[np.uint8]
    start_us: Floats
    duration_us: Floats
    pid: Ints
    thread: Ints
    stream: Ints
    device: Ints
    correlation: Ints
    external_id: Ints
    op_id: Ints
    """`Record function id`: the execution trace's `rf_id` in newer files."""
    event_index: Ints
    """`Ev Idx`."""
    sequence: Ints
    """Of autograd: a forward operator and those that differentiate it have the same."""
    forward_thread: Ints
    """`Fwd thread id` of what differentiates: which thread's numbers `sequence` is of, by
    PyTorch's own count of threads; 0 of all others."""
    input_shapes: Ints
    input_dtypes: Ints
    input_values: Ints
    """`Concrete Inputs`: the arguments that are no tensors, a JSON list of texts."""
    input_strides: Ints
    size_bytes: Ints
    grid: Ints
    waves: Floats
    """Kernels: how many times over their blocks fill the device; 0 where not known."""
    collective: Ints
    process_group: Ints
    group_size: Ints
    in_elements: Ints
    out_elements: Ints
    collective_dtype: Ints
    """This and the two after it as JSON: a text, and lists of sizes in texts."""
    in_split: Ints
    out_split: Ints
    sync_stream: Ints
    """`cuda_sync` rows: the stream that waited or was waited for."""
    sync_source_stream: Ints
    sync_record_correlation: Ints
    memory: Allocations = field(default_factory=Allocations)
    """What the allocator did; nothing where the profile does not record it."""
    whole_recorded_frac: float | None = None
    """Of a part of a file, that of the whole (`Links.recorded_frac`)."""
    warnings: list[str] = field(default_factory=list)
    steps_by: str = ""
    """Name of the annotations that mark steps, where a user gave one."""
    tool: str = ""
    """What the file is where no PyTorch profiler wrote it: `an export of Nsight Systems`."""

    def __len__(self) -> int:
        return len(self.start_us)

    @cached_property
    def end_us(self) -> Floats:
        return self.start_us + self.duration_us

    @cached_property
    def is_device(self) -> Mask:
        """Rows that ran on a device: kernels, copies, memsets."""
        return self.is_of(DEVICE_CATEGORIES)

    @cached_property
    def is_communication(self) -> Mask:
        """Rows that move data between ranks, by their names (of kernels)."""
        return self.named(_is_communication)

    def of(self, *categories: Category, named: re.Pattern[str] | None = None) -> Ints:
        """Rows of these categories, all or those whose name a pattern matches at its start."""
        rows = np.flatnonzero(self.is_of(categories))
        return rows if named is None else rows[self.name_matches(named)[rows]]

    def is_of(self, categories: Iterable[Category]) -> Mask:
        return has_code(self.category, categories)

    def text(self, row: int) -> str:
        return self.strings[int(self.name[row])]

    def name_matches(self, pattern: re.Pattern[str]) -> Mask:
        """Rows whose name a pattern matches at its start."""
        return self.named(pattern.match)

    def name_contains(self, pattern: re.Pattern[str]) -> Mask:
        """Rows in whose name a pattern is found."""
        return self.named(pattern.search)

    def named(self, is_one: Callable[[str], object]) -> Mask:
        """Rows whose name a function accepts; each name is tried once."""
        if is_one not in self._named:
            hit = self._named[is_one] = np.zeros(len(self.strings), np.bool_)
            hit[[index for index in self._names if is_one(self.strings.texts[index])]] = True
        return self._named[is_one].take(self.name)

    @cached_property
    def _names(self) -> list[int]:
        """Indices of the strings that are names of events; the others are shapes and such."""
        used = np.zeros(len(self.strings), np.bool_)
        used[self.name] = True
        return np.flatnonzero(used).tolist()

    @cached_property
    def _named(self) -> dict[Callable[[str], object], Mask]:
        """Which strings are names that a function accepts, for those that were asked for."""
        return {}


def _is_communication(name: str) -> bool:
    """A function of the module, which a rank that keeps it as a key can be pickled with."""
    return COMMUNICATION_NAME.search(name[:TELLING_CHARACTERS]) is not None


INTEGERS = tuple(each.name for each in fields(RankTrace) if each.type == "Ints")
TEXT_COLUMNS = (
    *("name", "input_shapes", "input_dtypes", "input_values", "input_strides", "grid"),
    *("collective", "process_group", "collective_dtype", "in_split", "out_split"),
)
"""Columns of `RankTrace` that are indices of its strings."""
_WIDE = ("size_bytes", "in_elements", "out_elements")
"""Columns of int64; other integers are ids and indices, int32 or, where one needs it, int64."""
_HOUR_NS = 3_600 * 10**9
_FAR = 1000
"""An event is far from its like where it is an hour and so many times their usual distance off."""
_FEW = 3
"""Of fewer it is not known where they lie."""
_ON_DEVICE = (*DEVICE_CATEGORIES, Category.GPU_ANNOTATION, Category.CUDA_SYNC)


def rank_of_columns(
    where: str,
    category: NDArray[np.uint8],
    start_ns: Ints,
    duration_ns: Ints,
    columns: Mapping[str, NDArray[Any]],
    **known: Any,
) -> RankTrace:
    """The rank of these events, but those whose times mean nothing: by start, then longest first,
    then `Ev Idx`, then as they stand in the file.

    `columns` are those of `RankTrace` of which the file says something, and `known` its other
    fields. All other columns are one array, read-only.
    """
    is_stray = _strays(start_ns, category)
    blank = np.full(len(category), NONE, np.int32)
    order = np.argsort(start_ns, kind="stable")
    is_same = np.zeros(len(order) + 1, np.bool_)  # begins when the one before does
    is_same[1:-1] = np.diff(start_ns[order]) == 0
    tied = np.flatnonzero(is_same[1:] | is_same[:-1])
    rows, event_index = order[tied], columns.get("event_index", blank)
    order[tied] = rows[np.lexsort((event_index[rows], -duration_ns[rows], start_ns[rows]))]
    order = order[~is_stray[order]]
    start_ns = start_ns[order]
    origin_ns = int(start_ns[0]) if len(order) else 0
    blank = blank[: len(order)]
    blank.flags.writeable = False
    taken: dict[str, NDArray[Any]] = dict.fromkeys(INTEGERS, blank)
    taken |= {"waves": np.zeros(len(order)), "file_index": order.astype(np.int32)}
    for name, values in columns.items():
        taken[name] = values[order].astype(np.int64) if name in _WIDE else values[order]
    usual: dict[str, Any] = {"rank": NONE, "world_size": None, "devices": (), "warnings": []}
    if count := int(is_stray.sum()):
        usual["warnings"] = [f"{count} events begin hours from all others: left out"]
    return RankTrace(
        where=where,
        origin_ns=origin_ns,
        category=category[order],
        start_us=(start_ns - origin_ns) / 1e3,
        duration_us=duration_ns[order] / 1e3,
        **usual | taken | known,
    )


def rank_from_events(where: str, events: Iterable[Mapping[str, Any]], **known: Any) -> RankTrace:
    """The rank that `events` are of, in whatever order.

    An event has `category`, `name`, `start_ns`, `duration_ns`, and of the other columns of
    `RankTrace` those that are known, whole numbers and texts.
    """
    rows, strings = list(events), Strings()
    start_ns, duration_ns = (
        np.array([row[key] for row in rows], np.int64) for key in ("start_ns", "duration_ns")
    )
    columns, told = dict[str, Ints](), {name for row in rows for name in row}
    for name in INTEGERS:
        if name not in told:
            continue
        given = [row.get(name, NONE) for row in rows]
        if name in TEXT_COLUMNS:
            given = [strings.intern(text if isinstance(text, str) else None) for text in given]
        values = np.array(given, np.int64)
        narrow = values.astype(np.int32)
        columns[name] = narrow if (narrow == values).all() else values
    category = np.array([row["category"] for row in rows], np.uint8)
    return rank_of_columns(
        where, category, start_ns, duration_ns, columns, strings=strings, **known
    )


def _strays(start_ns: Ints, category: NDArray[np.uint8]) -> Mask:
    """Events that begin far from all others of host or device: their times mean nothing."""
    result = np.zeros(len(start_ns), np.bool_)
    if not len(start_ns) or int(start_ns.max()) - int(start_ns.min()) <= _HOUR_NS:
        return result
    is_device, is_known = has_code(category, _ON_DEVICE), category != Category.OTHER
    enough = min(is_device.sum(), (~is_device & is_known).sum()) >= _FEW
    for like in (is_device, ~is_device) if enough else (~result,):
        known = start_ns[like & is_known]
        if len(known) >= _FEW:
            middle_ns = int(np.partition(known, len(known) // 2)[len(known) // 2])
            usual_ns = int(np.median(np.abs(known - middle_ns)))
            result |= like & (np.abs(start_ns - middle_ns) > max(_HOUR_NS, _FAR * usual_ns))
    return result


def frame_of_rank(rank: RankTrace) -> pd.DataFrame:
    """The columns of `rank` as a frame, one row per event: texts as texts, missing where
    there is none; integers are `NONE` (-1) where the file says nothing.

    `rank` says which rank an event is of, and `device_name` what its device is.
    """
    import pandas as pd

    text = np.array([*rank.strings.texts, None], dtype=object)
    category = np.array([each.name.lower() for each in Category], dtype=object)
    device = next(iter(rank.devices), DeviceProperties(""))
    columns = {name: getattr(rank, name) for name in INTEGERS if name != "file_index"}
    columns |= {name: text[getattr(rank, name)] for name in TEXT_COLUMNS}
    columns |= {
        "rank": rank.rank,
        "category": category[rank.category],
        "start_us": rank.start_us,
        "duration_us": rank.duration_us,
        "waves": rank.waves,
        "world_size": NONE if rank.world_size is None else rank.world_size,
        "origin_ns": rank.origin_ns,
        "device_name": device.name or None,
        "device_memory_bytes": device.memory_bytes,
    }
    first = ("rank", "name", "category", "start_us", "duration_us", "thread", "stream", "device")
    return pd.DataFrame(columns)[[*first, *(name for name in columns if name not in first)]]
