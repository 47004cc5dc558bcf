"""Errors of kernel models on measurement tables, per op, device and dtype, or per family."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.calibrate.device_data import Measured, read_tables
from perfmodel.calibrate.kernel_data import KernelErrors, devices_of, errors_of, joined, read_table
from perfmodel.cost.durations import Models, durations, durations_of
from perfmodel.errors import PerfmodelError
from perfmodel.evaluate.results import SCHEMA, Kind, Row, rows_of
from perfmodel.files import read_bytes
from perfmodel.hardware import Device, device

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class KernelEvaluation:
    """Errors per op, device and dtype; `points` are the single rows behind them."""

    rows: tuple[KernelErrors, ...]
    points: pd.DataFrame = field(repr=False)
    """`op device dtype measured_us predicted_us low_us high_us`, a line per measured row."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON answer of `perfmodel evaluate kernels`."""
        return {"schema": SCHEMA, "rows": [asdict(row) for row in self.rows]}

    def to_frame(self) -> pd.DataFrame:
        """One line per row."""
        import pandas as pd

        return pd.DataFrame([asdict(row) for row in self.rows])

    def plot(self) -> Figure:
        """Predicted over measured of every row, coloured by op, with its interval."""
        from perfmodel.plot import errors_figure

        return errors_figure(self.points.rename(columns={"op": "group"}), title="Kernels")


def evaluate_kernels(paths: Sequence[Path], models: Models | None = None) -> KernelEvaluation:
    """Errors on every row of the tables at `paths`, with `models` or the default ones.

    Raises `ModelError` for a table or a row that cannot be used, `HardwareError` for an unknown
    device.
    """
    frame = joined([read_table(Path(path)) for path in paths])
    known = devices_of(frame["device"])
    rows: list[KernelErrors] = []
    points: list[pd.DataFrame] = []
    for name, measured in frame.groupby("device", sort=True):
        predicted = durations(measured, known[name], models=models)
        points.append(_points(measured, predicted))
        for (op, dtype), index in measured.groupby(["op", "dtype"], sort=True).groups.items():
            rows.append(
                errors_of(
                    (op, name, dtype),
                    measured.loc[index, "duration_us"].to_numpy(np.float64),
                    *(
                        predicted.loc[index, name].to_numpy(np.float64)
                        for name in ("duration_us", "low_us", "high_us")
                    ),
                )
            )
    return KernelEvaluation(tuple(rows), _concatenated(points))


def _points(measured: pd.DataFrame, predicted: pd.DataFrame) -> pd.DataFrame:
    """One device's rows: what they are, what was measured, what was predicted."""
    named = measured[["op", "device", "dtype"]].assign(measured_us=measured["duration_us"])
    times = predicted[["duration_us", "low_us", "high_us"]]
    return named.join(times.rename(columns={"duration_us": "predicted_us"}))


def _concatenated(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    import pandas as pd

    return pd.concat(parts, ignore_index=True)


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
