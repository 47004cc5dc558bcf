"""Errors of kernel models on measurement tables, per op, device and dtype, or per family."""

from __future__ import annotations

import csv
import hashlib
import io
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.base.files import read_bytes
from perfmodel.cost.durations import durations, durations_of
from perfmodel.cost.gpu.program import shortest_kernel_us
from perfmodel.errors import HardwareError, ModelError, PerfmodelError
from perfmodel.hardware import device
from perfmodel.ops.spec import OPS
from perfmodel.validate.calibrate.device_data import read_tables
from perfmodel.validate.calibrate.kernel_data import LAUNCHED_US, devices_of, joined, read_table
from perfmodel.validate.evaluate.results import SCHEMA, Errors, Kind, error_rows, rows_of

MAX_NAMED = 5
"""Unknown ops that an error names."""
_FIGURES = ("mape_pct", "gmae_pct", "median_pct", "bias_pct", "coverage_frac", "width_frac")


def evaluate_kernels(paths: Sequence[Path]) -> Errors:
    """Errors on every row of the tables at `paths`.

    Raises `ModelError`, naming the file, for a table or an op that cannot be used, `HardwareError`
    for an unknown device.
    """
    import pandas as pd

    tables = [read_table(Path(path)) for path in paths]
    for table in tables:
        unknown = sorted({op for op in table.frame["op"].unique() if op not in OPS})
        if unknown:
            shown = ", ".join(repr(op[:60]) for op in unknown[:MAX_NAMED])
            more = len(unknown) - MAX_NAMED
            raise ModelError(
                f"{table.path}: unknown ops {shown}{f' and {more} more' if more > 0 else ''}; "
                "`perfmodel kernel` lists those that can be predicted"
            )
    frame = joined(tables)
    known = devices_of(frame["device"])
    host = ["device", LAUNCHED_US] if LAUNCHED_US in frame else ["device"]
    parts = []
    for _, own in frame.groupby(host, sort=False, dropna=False):
        part = known[own["device"].iloc[0]]
        launched_us = own[LAUNCHED_US].iloc[0] if LAUNCHED_US in own else np.nan
        if not np.isnan(launched_us):  # the shortest kernel is what the host's smallest call took
            part = replace(part, kernel_floor_us=shortest_kernel_us(launched_us))
        parts.append(durations(own, part))
    times = pd.concat(parts).rename(columns={"duration_us": "predicted_us"})
    measured = frame[["op", "device", "dtype"]].assign(measured_us=frame["duration_us"])
    points = measured.join(times[["predicted_us", "low_us", "high_us"]])
    rows = error_rows(points, ("device", "op", "dtype"), _FIGURES)
    late = sum(len(table.frame) for table in tables) - len(frame)
    said = f"{late:,} rows left out: their launches came late, so that they are host time"
    return Errors(SCHEMA, rows, [said] * bool(late))


_SUFFIXES = (".csv", ".csv.gz", ".parquet")
_COLUMNS = ("op", "device", "duration_us")
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
    fitted on (by its hash) is left out, for its errors would say nothing, and so is one that names
    a device of the catalogue of another kind.
    """
    jobs = []
    for given in map(Path, paths):
        root = Path(os.path.abspath(given))
        for folder, folders, files in os.walk(root):
            folders.sort()
            within = [at for at in (Path(folder), *Path(folder).parents) if at.is_relative_to(root)]
            sole = [found[0] for at in within if len(found := list(at.glob("*.toml"))) == 1]
            for file in sorted(files) if sole else ():
                path, described = Path(folder) / file, sole[0]
                if _is_test_of(path, described):
                    below = path.relative_to(root)
                    name = (Path(root.name) / below).as_posix()
                    jobs.append(TableJob(name, given / below, described))
    return jobs


def table_rows(job: TableJob) -> list[dict[str, Any]]:
    """Per family: errors of one table's rows. Raises `PerfmodelError` naming the file."""
    measured = read_tables([job.path]).all
    part = device(job.device)
    rows = []
    for family, index in sorted(measured.families().items()):
        of_family = measured.take(index)
        try:
            predicted = durations_of(of_family.rows, part).duration_us
        except PerfmodelError as error:
            raise type(error)(f"{job.name}: {error}") from None
        rows += rows_of(job.name, (Kind.KERNELS, family, predicted, of_family.duration_us))
    return rows


def _is_test_of(path: Path, described: Path) -> bool:
    """Whether a file is a table of measured kernels that tells of the device `described`: Parquet,
    or a CSV file with the columns, neither fitted to nor of other code's devices."""
    if not path.name.lower().endswith(_SUFFIXES):
        return False
    content = read_bytes(path, max_bytes=_MAX_BYTES)
    row: dict[str, str] = {}
    names: tuple[str, ...] = ()
    if path.suffix != ".parquet":
        table = csv.DictReader(io.StringIO(content.decode("utf-8", "replace")))
        with suppress(csv.Error):  # what reads the table says what is wrong with it
            names = tuple(table.fieldnames or ())
            row = next(table, {})
        if not set(_COLUMNS) <= set(names):
            return False
    if hashlib.sha256(content).hexdigest() in described.read_text("utf-8", errors="replace"):
        return False
    try:
        return device(row.get("device") or "").target == device(described).target
    except HardwareError:
        return True
