"""Index streams from files: which rows were looked up, one after the other."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import WorkloadError
from perfmodel.files import read_bytes
from perfmodel.frames import frame_of
from perfmodel.locality.popularity import Popularity
from perfmodel.locality.stack import Ints

_MOST_SINGLE = 64
MAX_STREAM_BYTES = 4_000_000_000


def read_stream(path: str | Path) -> dict[str, Ints]:
    """Row numbers looked up in each table, by the table's name; one without a name is `""`.

    By the file's ending: `.npy` (integers `[lookups]`, or `[lookups, 2]` of table and row), `.npz`
    (one array per table), `.parquet` and `.csv` (columns `row` and, with several tables, `table`),
    `.txt` (one row number per line).

    Raises `WorkloadError` that names the file where it cannot be read, holds no lookups, or holds
    what are no row numbers.
    """
    path = Path(path)
    readers = {
        ".npy": _read_npy,
        ".npz": _read_npz,
        ".parquet": _read_frame,
        ".csv": _read_frame,
        ".txt": _read_text,
    }
    reader = readers.get(path.suffix)
    if reader is None:
        raise WorkloadError(f"{path}: an index stream ends in {', '.join(readers)}")
    try:
        found = reader(path)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise WorkloadError(f"{path}: cannot be read as an index stream: {error}") from None
    return {name: _row_numbers(values, f"{path}: {name}") for name, values in found.items()}


def stream_popularity(rows: Ints, table_rows: float = 0.0) -> Popularity:
    """As if the stream's rows were all there are, each as popular as it was looked up.

    `rows` `[lookups]`. The most popular rows are classes of their own, others share one if their
    counts do. `table_rows` adds the rows that were not looked up.
    """
    if not len(rows):
        raise WorkloadError("index stream: no lookups")
    counts = np.sort(np.unique(rows, return_counts=True)[1])[::-1]
    single, rest = counts[:_MOST_SINGLE], counts[_MOST_SINGLE:]
    level = np.where(rest <= _MOST_SINGLE, rest, np.floor(32 * np.log2(np.maximum(rest, 1))) + 1e6)
    place = np.unique(level, return_inverse=True)[1]
    sizes = np.concatenate([np.ones(len(single)), np.bincount(place)])
    weight = np.concatenate([single.astype(np.float64), np.bincount(place, rest)])
    unused = table_rows - len(counts)
    if table_rows and unused < 0:
        raise WorkloadError(f"index stream: {len(counts)} rows of a table of {table_rows:g}")
    if table_rows and unused > 0:
        sizes, weight = np.append(sizes, unused), np.append(weight, 0.0)
    return Popularity(sizes, weight / weight.sum())


def _read_npy(path: Path) -> dict[str, NDArray[np.generic]]:
    values = np.load(path, mmap_mode="r", allow_pickle=False)
    if values.ndim == 2 and values.shape[1] == 2:
        return _by_table(values[:, 0], values[:, 1])
    return {"": values}


def _read_npz(path: Path) -> dict[str, NDArray[np.generic]]:
    with zipfile.ZipFile(path) as packed:
        if sum(each.file_size for each in packed.infolist()) > MAX_STREAM_BYTES:
            raise ValueError(f"its content is above the limit of {MAX_STREAM_BYTES} bytes")
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def _read_frame(path: Path) -> dict[str, NDArray[np.generic]]:
    frame = frame_of(read_bytes(path, max_bytes=MAX_STREAM_BYTES), max_bytes=MAX_STREAM_BYTES)
    if "row" not in frame:
        raise ValueError("no column 'row'")
    if "table" not in frame:
        return {"": frame["row"].to_numpy()}
    return _by_table(frame["table"].to_numpy(), frame["row"].to_numpy())


def _read_text(path: Path) -> dict[str, NDArray[np.generic]]:
    return {
        "": np.array(read_bytes(path, max_bytes=MAX_STREAM_BYTES).decode().split(), dtype=np.int64)
    }


def _by_table(
    table: NDArray[np.generic], rows: NDArray[np.generic]
) -> dict[str, NDArray[np.generic]]:
    names, place = np.unique(table, return_inverse=True)
    return {str(name): rows[place == number] for number, name in enumerate(names)}


def _row_numbers(values: NDArray[np.generic], where: str) -> Ints:
    if values.ndim != 1 or not len(values):
        raise WorkloadError(f"{where}: holds no lookups")
    if values.dtype.kind not in "iu":
        raise WorkloadError(f"{where}: row numbers must be integers, not {values.dtype}")
    rows = values.astype(np.int64)
    if (rows < 0).any():
        place = int(np.argmax(rows < 0))
        raise WorkloadError(f"{where}: row {rows[place]} at lookup {place}: below 0")
    return rows
