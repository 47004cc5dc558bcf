"""The file that a repository keeps of its errors: small, sorted, one line per row."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec

from perfmodel.errors import UsageError
from perfmodel.files import read_bytes, write_text
from perfmodel.validate.types import FIGURES, Kind, Row

SCHEMA = "perfmodel.baseline/1"
_FAMILY = SCHEMA.rpartition("/")[0]
_MAX_BYTES = 50_000_000

_Size = Annotated[float, msgspec.Meta(ge=0)]


class _Row(msgspec.Struct, forbid_unknown_fields=True):
    trace: str
    kind: Kind
    name: str
    n: Annotated[int, msgspec.Meta(ge=1)]
    mape_pct: _Size
    median_pct: _Size
    worst_pct: _Size
    bias_pct: float


class _File(msgspec.Struct, forbid_unknown_fields=True):
    schema: str
    rows: Annotated[list[_Row], msgspec.Meta(min_length=1)]


class _Head(msgspec.Struct):
    schema: str


_DAMAGES = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def read_baseline(path: Path) -> list[Row]:
    """The rows of a baseline.

    Raises `UsageError` naming the file and what is wrong: no baseline, one of another version,
    an unknown or missing key, a figure that is none, or a row that stands twice.
    """
    content = read_bytes(path, max_bytes=_MAX_BYTES)
    schema = _schema(content, path)
    if schema != SCHEMA:
        raise UsageError(
            f"{path}: is a {schema}, and this version reads {SCHEMA}: rewrite it with --update"
        )
    try:
        file = msgspec.json.decode(content, type=_File)
    except _DAMAGES as error:
        raise UsageError(f"{path}: not a sound baseline: {error}") from None
    rows = [
        Row(r.trace, r.kind, r.name, r.n, *(float(getattr(r, key)) for key in FIGURES))
        for r in file.rows
    ]
    for key, count in Counter(row.key for row in rows).items():
        if count > 1:
            raise UsageError(f"{path}: not a sound baseline: {' '.join(key)} stands there twice")
    return rows


def write_baseline(path: Path, rows: Iterable[Row]) -> None:
    """Write the rows, sorted, whole or not at all.

    Raises `UsageError` where a file at `path` is no baseline, of whatever version.
    """
    check_replaceable(path)
    ordered = sorted(rows, key=lambda row: (row.trace, list(Kind).index(row.kind), row.name))
    lines = ",\n".join(f"  {json.dumps(row.to_dict(), allow_nan=False)}" for row in ordered)
    write_text(path, f'{{\n"schema": "{SCHEMA}",\n"rows": [\n{lines}\n]\n}}\n')


def check_replaceable(path: Path) -> None:
    """Raise `UsageError` where `--update` would overwrite something that is no baseline."""
    if path.exists():
        _schema(read_bytes(path, max_bytes=_MAX_BYTES), path)


def _schema(content: bytes, path: Path) -> str:
    try:
        schema = msgspec.json.decode(content, type=_Head).schema
    except _DAMAGES as error:
        raise UsageError(f"{path}: not a baseline: {error}") from None
    if schema.rpartition("/")[0] != _FAMILY:
        raise UsageError(f"{path}: not a baseline, but {schema!r}")
    return schema
