"""The events of one rank as columns, filled while a file is decoded."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Floats, Ints, Mask, has_code
from perfmodel.trace.categories import DEVICE_CATEGORIES, Category

NONE = -1
"""In an integer column: the file says nothing."""


class Strings:
    """Interned strings: text to index and back. Index -1 is no text."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._index: dict[str, int] = {}

    def intern(self, text: str | None) -> int:
        if text is None:
            return NONE
        index = self._index.get(text)
        if index is None:
            index = self._index[text] = len(self.texts)
            self.texts.append(text)
        return index

    def __getitem__(self, index: int) -> str:
        return self.texts[index] if index >= 0 else ""

    def __len__(self) -> int:
        return len(self.texts)


def text_codes(texts: Iterable[str], known: dict[str, int] | None = None) -> Ints:
    """The same number for the same text, in order of first sight; `known` carries it over calls."""
    known = {} if known is None else known
    return np.array([known.setdefault(text, len(known)) for text in texts], np.int64)


def subtree_last(above: Sequence[int]) -> Ints:
    """`[N]`: for each row the highest row that it called, directly or not (itself, for a leaf), of
    the row that called each (`NONE` for none)."""
    last = [NONE] * len(above)
    for highest in range(len(above) - 1, -1, -1):
        row = highest
        while row != NONE and last[row] == NONE:
            last[row] = highest
            row = above[row]
    return np.array(last, np.int64)


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
    unreadable: int = 0
    """Events left out because a size or a total of them is no whole number."""
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


_PER_EVENT = tuple(each.name for each in fields(Allocations))[:-2]


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

    def of(self, *categories: Category) -> Ints:
        return np.flatnonzero(self.is_of(categories))

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
