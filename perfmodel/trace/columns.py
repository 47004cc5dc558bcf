"""The events of one rank as columns."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.trace.categories import DEVICE_CATEGORIES, Category

if TYPE_CHECKING:
    import pandas as pd

Ints = NDArray[np.signedinteger[Any]]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

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


def codes(texts: Iterable[str], known: dict[str, int] | None = None) -> Ints:
    """The same number for the same text, in order of first sight; `known` carries it over calls."""
    known = {} if known is None else known
    return np.array([known.setdefault(text, len(known)) for text in texts], np.int64)


@dataclass(frozen=True)
class DeviceProperties:
    """What the trace says of one GPU."""

    name: str
    memory_bytes: int = 0
    sm_count: int = 0


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

    def __len__(self) -> int:
        return len(self.at_us)

    def by_device(self) -> dict[str, Allocations]:
        """Per device (`cuda:0`, `cpu`) its events, devices in order of their first one."""
        keys = np.stack([self.device_type, self.device], axis=1)
        found, first, inverse = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        columns = [getattr(self, each.name) for each in fields(self)[:-1]]
        return {
            _device_name(*found[at].tolist()): Allocations(
                *(column[inverse.reshape(-1) == at] for column in columns)
            )
            for at in np.argsort(first).tolist()
        }


def _device_name(device_type: int, index: int) -> str:
    name = _DEVICE_TYPES.get(device_type, f"type {device_type}")
    return name if index < 0 or not device_type else f"{name}:{index}"


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
    thread_names: dict[int, str]
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

    def __len__(self) -> int:
        return len(self.start_us)

    @cached_property
    def end_us(self) -> Floats:
        return self.start_us + self.duration_us

    @cached_property
    def is_device(self) -> Mask:
        """Rows that ran on a device: kernels, copies, memsets."""
        return np.isin(self.category, DEVICE_CATEGORIES)

    def of(self, *categories: Category) -> Ints:
        """Rows of these categories, in order."""
        return np.flatnonzero(np.isin(self.category, categories))

    def text(self, row: int) -> str:
        """The name of the event in `row`."""
        return self.strings[int(self.name[row])]

    @cached_property
    def _names(self) -> list[tuple[int, str]]:
        """(index, text) of the strings that are names of events; the others are shapes and such."""
        used = np.zeros(len(self.strings), np.bool_)
        used[self.name] = True
        return [(index, self.strings.texts[index]) for index in np.flatnonzero(used).tolist()]

    def name_matches(self, pattern: re.Pattern[str]) -> Mask:
        """Rows whose name a pattern matches at its start; each name is tried once."""
        return self._rows_of([i for i, text in self._names if pattern.match(text)])

    def name_contains(self, pattern: re.Pattern[str]) -> Mask:
        """Rows in whose name a pattern is found; each name is tried once."""
        return self._rows_of([i for i, text in self._names if pattern.search(text)])

    def _rows_of(self, names: list[int]) -> Mask:
        hit = np.zeros(len(self.strings), bool)
        hit[names] = True
        return hit[self.name]

    def frame(self) -> pd.DataFrame:
        """The columns as a pandas frame, one row per event."""
        import pandas as pd

        text = np.array([*self.strings.texts, None], dtype=object)
        category = np.array([c.name.lower() for c in Category], dtype=object)
        return pd.DataFrame(
            {
                "rank": self.rank,
                "name": text[self.name],
                "category": category[self.category],
                "start_us": self.start_us,
                "duration_us": self.duration_us,
                "thread": self.thread,
                "stream": self.stream,
                "device": self.device,
                "correlation": self.correlation,
                "external_id": self.external_id,
                "op_id": self.op_id,
                "sequence": self.sequence,
                "input_shapes": text[self.input_shapes],
                "input_dtypes": text[self.input_dtypes],
                "size_bytes": self.size_bytes,
                "grid": text[self.grid],
                "collective": text[self.collective],
                "process_group": text[self.process_group],
                "group_size": self.group_size,
                "in_elements": self.in_elements,
                "out_elements": self.out_elements,
            }
        )
