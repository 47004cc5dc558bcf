"""Overhead profiles as files (`perfmodel.overheads/1`, plain JSON), with where they come from."""

from __future__ import annotations

from dataclasses import MISSING, asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from perfmodel.cost.host.samples import QUANTILES, TYPES, Statistic, Us
from perfmodel.errors import ModelError, PerfmodelError
from perfmodel.files import read_bytes, write_text


@dataclass(frozen=True)
class Provenance:
    """What a profile was taken from. Tuples hold what each merged part says; empty: not known."""

    traces: tuple[str, ...] = ()
    """File names of the traces, without folders."""
    devices: tuple[str, ...] = ()
    torch_versions: tuple[str, ...] = ()
    cuda_versions: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    profiler_us_per_event: Us = 0.0
    """What was taken off the samples per recorded event, in microseconds; 0: as measured."""
    blocking: bool = False
    """Samples that waited for the device or another thread are in it too."""
    unwatched: bool = False
    """What operators take was measured without a profiler."""

    def __str__(self) -> str:
        return ", ".join(self.traces) or "unnamed samples"

    def merge(self, other: Provenance) -> Provenance:
        """Both, without repeats. Raises `ModelError` when their samples mean different things."""
        if self.blocking != other.blocking:
            raise ModelError(
                f"profiles of {self} and {other} cannot be merged: one holds blocking samples, "
                "the other none; take both the same way"
            )
        if self.profiler_us_per_event != other.profiler_us_per_event:
            raise ModelError(
                f"profiles of {self} and {other} cannot be merged: their profiler corrections are "
                f"{self.profiler_us_per_event} and {other.profiler_us_per_event} us per event"
            )
        if self.unwatched != other.unwatched:
            raise ModelError(
                f"profiles of {self} and {other} cannot be merged: one was measured without a "
                "profiler, the other with one"
            )
        both: dict[str, Any] = {
            field.name: tuple(
                dict.fromkeys((*getattr(self, field.name), *getattr(other, field.name)))
            )
            for field in fields(self)
            if isinstance(field.default, tuple)
        }
        return replace(self, **both)


SCHEMA = "perfmodel.overheads/1"
MAX_BYTES = 100_000_000

Key = tuple[str, str | None, str | None]
"""Type, operator (or launch call) and thread role; None stands for all of them."""
Rows = dict[Key, Statistic]


def _struct(cls: type, *more: tuple[str, Any]) -> Any:
    """The dataclass `cls` as a strict record of a file, with `more` fields before its own."""
    hints = get_type_hints(cls, include_extras=True)
    own = [
        (each.name, hints[each.name], *(() if each.default is MISSING else (each.default,)))
        for each in fields(cls)
    ]
    return msgspec.defstruct(cls.__name__, [*more, *own], forbid_unknown_fields=True)


_Row = _struct(Statistic, ("type", str), ("op", str | None), ("thread", str | None))
_Source = _struct(Provenance)
_PARTS = [("schema", str), ("provenance", _Source), ("rows", list[_Row])]  # type: ignore[valid-type]
_File: Any = msgspec.defstruct("_File", _PARTS, forbid_unknown_fields=True)


def write_profile(path: Path, rows: Rows, provenance: Provenance) -> None:
    """Write a profile, whole or not at all. Raises `PerfmodelError` when it cannot be written."""
    keys = sorted(rows, key=lambda key: (TYPES.index(key[0]), key[2] or "", key[1] or ""))
    content = _File(
        schema=SCHEMA,
        provenance=_Source(**asdict(provenance)),
        rows=[
            _Row(type=kind, op=op, thread=thread, **asdict(rows[kind, op, thread]))
            for kind, op, thread in keys
        ],
    )
    write_text(path, msgspec.json.format(msgspec.json.encode(content), indent=1).decode() + "\n")


def read_profile(path: Path) -> tuple[Rows, Provenance]:
    """The rows and provenance of a file. Raises `ModelError` naming the file and the key."""
    try:
        raw = read_bytes(path, max_bytes=MAX_BYTES)
    except PerfmodelError as error:
        raise ModelError(str(error)) from None
    try:
        content = msgspec.json.decode(raw, type=_File)
    except msgspec.ValidationError as error:
        raise ModelError(f"{path}: no overhead profile: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ModelError(f"{path}: not an overhead profile: invalid JSON: {error}") from None
    if content.schema != SCHEMA:
        raise ModelError(
            f"{path}: $.schema: expected {SCHEMA!r}, got {content.schema[:60]!r}: "
            "take the profile again with this version"
        )
    rows: Rows = {}
    for at, row in enumerate(content.rows):
        problem = _problem(row, rows)
        if problem:
            raise ModelError(f"{path}: $.rows[{at}]{problem}")
        numbers = {each.name: getattr(row, each.name) for each in fields(Statistic)}
        rows[row.type, row.op, row.thread] = Statistic(**numbers)
    if not rows:
        raise ModelError(f"{path}: $.rows: empty: a profile needs at least one row")
    for at, row in enumerate(content.rows):
        for key in ((row.type, None, row.thread), (row.type, None, None)):
            if key not in rows:
                raise ModelError(
                    f"{path}: $.rows[{at}]: no row with op null and thread {key[2] or 'null'} "
                    f"for {row.type} to fall back to"
                )
    return rows, Provenance(**msgspec.structs.asdict(content.provenance))


def _problem(row: Any, rows: Rows) -> str | None:
    """What is wrong with one row apart from its types, after its key."""
    if row.type not in TYPES:
        return f".type: expected one of {', '.join(TYPES)}, got {row.type[:60]!r}"
    if row.op is not None and row.thread is None:
        return ".thread: null for a row with an op: name the thread"
    if (row.type, row.op, row.thread) in rows:
        return ": repeats an earlier row's type, op and thread"
    quantiles = [getattr(row, name) for name in QUANTILES]
    for name, low, high in zip(list(QUANTILES)[1:], quantiles[:-1], quantiles[1:], strict=True):
        if high < low:
            return f".{name}: {high} is below the quantile before it, {low}"
    return None
