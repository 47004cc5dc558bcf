"""Measurement tables beside a device's own file: errors of its kernel models, by family."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from perfmodel.duration import durations_of
from perfmodel.errors import PerfmodelError
from perfmodel.files import read_bytes
from perfmodel.fit.device_data import Measured, read_tables
from perfmodel.hardware import Device, device
from perfmodel.validate.types import Kind, Row, rows_of

_SUFFIXES = (".csv", ".csv.gz", ".parquet")
_HEADER_BYTES = 4096
_COLUMNS = (b"op", b"device", b"duration_us")
_MAX_BYTES = 500_000_000


@dataclass(frozen=True)
class TableJob:
    """A table of measured kernels, and the file that describes the device it was measured on."""

    name: str
    path: Path
    device: Path


def find_tables(paths: Iterable[str | Path]) -> list[TableJob]:
    """The measurement tables below folders that hold a device's file (`*.toml`), by name.

    The file nearest above a table is its device's; a table that this file names as what it was
    fitted on (by its hash) is left out, for its errors would say nothing.
    """
    jobs = []
    for given in map(Path, paths):
        root = Path(os.path.abspath(given))
        if not root.is_dir():
            continue
        for folder, folders, files in os.walk(root):
            folders.sort()
            for file in sorted(files):
                path = Path(folder) / file
                described = _device_file(path.parent, root)
                if described is None or not _is_table(path) or _was_fitted_on(described, path):
                    continue
                below = (Path(root.name) / path.relative_to(root)).as_posix()
                jobs.append(TableJob(below, given / path.relative_to(root), described))
    return jobs


def table_rows(job: TableJob) -> list[Row]:
    """Per family: errors of one table's rows. Raises `PerfmodelError` naming the file."""
    measured = read_tables([job.path]).all
    part = device(job.device)
    rows = []
    for family, index in measured.families().items():
        rows += _family_rows(job.name, family, measured.take(index), part)
    return sorted(rows, key=lambda row: row.name)


def _family_rows(name: str, family: str, measured: Measured, part: Device) -> list[Row]:
    try:
        predicted = durations_of(measured.rows, part).duration_us
    except PerfmodelError as error:
        raise type(error)(f"{name}: {error}") from None
    return rows_of(name, Kind.KERNELS, family, predicted, np.asarray(measured.duration_us))


def _device_file(folder: Path, root: Path) -> Path | None:
    """The only TOML file in `folder`, or in the nearest folder above it within `root`."""
    for at in _upwards(folder, root):
        files = sorted(at.glob("*.toml"))
        if len(files) == 1:
            return files[0]
    return None


def _upwards(folder: Path, root: Path) -> Iterator[Path]:
    while True:
        yield folder
        if folder == root or folder.parent == folder:
            return
        folder = folder.parent


def _is_table(path: Path) -> bool:
    if not path.name.lower().endswith(_SUFFIXES):
        return False
    if path.suffix == ".parquet":
        return True
    head = read_bytes(path, max_bytes=_MAX_BYTES)[:_HEADER_BYTES].partition(b"\n")[0]
    columns = head.strip().split(b",")
    return all(column in columns for column in _COLUMNS)


def _was_fitted_on(described: Path, table: Path) -> bool:
    digest = hashlib.sha256(read_bytes(table, max_bytes=_MAX_BYTES)).hexdigest()
    return digest in described.read_text(encoding="utf-8", errors="replace")
