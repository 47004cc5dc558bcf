"""What is written: JSON records for people, and CSV tables that survive an interruption."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from perfmodel.base.files import write_text
from perfmodel.errors import PerfmodelError, UsageError

_FLAT_LIST = re.compile(r"\[\s+([^\[\]{}\"]*?)\s+\]")


def dump_record(record: dict[str, Any]) -> str:
    """`record` as indented JSON, every list of plain numbers on one line."""
    text = json.dumps(record, indent=1)
    return _FLAT_LIST.sub(lambda content: f"[{' '.join(content.group(1).split())}]", text) + "\n"


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Write `record` to `path`, whole or not at all."""
    write_text(path, dump_record(record))


PARTS = ("compute", "cache", "memory", "python")
"""Of the reference work (`reference.py`), which is timed beside whatever is measured."""
REFERENCE_COLUMNS = tuple(f"reference_{part}_us" for part in PARTS)

IDENTITY = (
    *("op", "device", "dtype", "direction", "timing", "cache", "variant", "b", "m", "n", "k"),
    *("layout", "bias", "rows", "cols", "elements", "tensors", "batch", "in_channels"),
    *("out_channels", "kernel_size", "input_size", "stride", "padding", "hash_size", "dim"),
    *("pooling", "zipf_alpha", "ranks", "library", "tokens", "pairs", "heads"),
    *("head_dim", "value_dim", "max_length", "lengths", "reads", "writes", "flop_per_element"),
)
"""What tells one measurement from another; empty where a dim does not apply."""

MEASURED = (
    *("duration_us", "median_us", "p90_us", "spread_frac", "repeats", "host_us", "unique_rows"),
    *REFERENCE_COLUMNS,
)
"""`duration_us` is the robust estimate (10th percentile of interleaved repeats)."""

COLUMNS = IDENTITY + MEASURED


def key_of(row: Mapping[str, Any]) -> tuple[str, ...]:
    """The identity of `row`, the same for values and for their text in a file."""
    return tuple(_text(row.get(name)) for name in IDENTITY)


class Table:
    """Rows at `path`; those already there are kept, and `in` says whether one is there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._keys: set[tuple[str, ...]] = set()
        if path.exists():
            self._resume()
        else:
            self._append(",".join(COLUMNS) + "\n")

    def __contains__(self, row: Mapping[str, Any]) -> bool:
        return key_of(row) in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append `rows` and hand them to the operating system; `PerfmodelError` when it refuses."""
        rows = list(rows)
        if unknown := {name for row in rows for name in row} - set(COLUMNS):
            raise PerfmodelError(f"no column {sorted(unknown)} in the measurement table")
        text = _csv([row.get(name) for name in COLUMNS] for row in rows)
        self._append(text)
        self._keys.update(key_of(row) for row in rows)

    def _resume(self) -> None:
        """Read the keys of the rows that are there; drop a last line that was cut short."""
        try:
            text = self.path.read_text()
        except OSError as error:
            raise UsageError(f"{self.path}: cannot be read: {error.strerror}") from None
        whole = text[: text.rfind("\n") + 1]
        reader = csv.DictReader(io.StringIO(whole))
        if tuple(reader.fieldnames or ()) != COLUMNS:
            raise UsageError(
                f"{self.path}: its columns are not those of this version; move it away, or name "
                "another output folder"
            )
        self._keys = {key_of(row) for row in reader}
        if whole != text:
            self.path.write_text(whole)

    def _append(self, text: str) -> None:
        try:
            with self.path.open("a") as file:
                file.write(text)
        except OSError as error:
            raise PerfmodelError(
                f"{self.path}: cannot be written: {error.strerror}; {len(self)} rows are kept, "
                "and the same command goes on from there"
            ) from None


def write_table(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write `rows` to the CSV file `path`, whole or not at all; packed if it ends in `.gz`."""
    write_text(path, _csv([columns, *([row.get(name) for name in columns] for row in rows)]))


def _csv(rows: Iterable[Iterable[Any]]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerows([_text(value) for value in row] for row in rows)
    return buffer.getvalue()


DIGITS = 10


def _text(value: Any) -> str:
    """`value` as it stands in a file; whole floats as integers, so that they compare equal."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.{DIGITS}g}"
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
