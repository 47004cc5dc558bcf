"""Index streams (rows looked up one after the other): from files, from traces."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Ints
from perfmodel.base.files import check_input, read_bytes
from perfmodel.base.frames import frame_of
from perfmodel.embedding.popularity import MAX_ALPHA, zipf
from perfmodel.errors import WorkloadError

MAX_STREAM_BYTES = 4_000_000_000


def read_stream(path: str | Path) -> dict[str, Ints]:
    """Row numbers looked up in each table, by the table's name; one without a name is `""`.

    By the file's ending: `.npy` (integers `[lookups]`, or `[lookups, 2]` of table and row), `.npz`
    (one array per table), `.parquet` and `.csv` (columns `row` and, with several tables, `table`;
    without `row` a column per table), `.txt` (one row number per line).

    Raises `WorkloadError` that names the file where it cannot be read, holds no lookups, or holds
    what are no row numbers.
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise WorkloadError(f"{path}: an index stream ends in {', '.join(SUFFIXES)}")
    try:
        check_input(path)
        columns = _columns(path)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise WorkloadError(f"{path}: cannot be read as an index stream: {error}") from None
    result = {}
    for name, values in columns.items():
        where = f"{path}: {name}"
        if values.ndim != 1 or not len(values):
            raise WorkloadError(f"{where}: holds no lookups")
        if values.dtype.kind not in "iu":
            raise WorkloadError(f"{where}: row numbers must be integers, not {values.dtype}")
        rows = result[name] = values.astype(np.int64)
        if (rows < 0).any():
            place = int(np.argmax(rows < 0))
            raise WorkloadError(f"{where}: row {rows[place]} at lookup {place}: below 0")
    return result


SUFFIXES = (".npy", ".npz", ".parquet", ".csv", ".txt")


def _columns(path: Path) -> dict[str, NDArray[np.generic]]:
    """What a file holds, by table; `ValueError` for what it should not."""
    table, rows = None, np.zeros(0, np.int64)
    if path.suffix == ".npz":
        with zipfile.ZipFile(path) as packed:
            if sum(each.file_size for each in packed.infolist()) > MAX_STREAM_BYTES:
                raise ValueError(f"its content is above the limit of {MAX_STREAM_BYTES} bytes")
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    if path.suffix == ".npy":
        rows = np.load(path, mmap_mode="r", allow_pickle=False)
        if rows.ndim == 2 and rows.shape[1] == 2:
            table, rows = rows.T
    elif path.suffix == ".txt":
        text = read_bytes(path, max_bytes=MAX_STREAM_BYTES).decode()
        rows = np.array(text.split(), dtype=np.int64)
    else:
        content = read_bytes(path, max_bytes=MAX_STREAM_BYTES)
        frame = frame_of(content, max_bytes=MAX_STREAM_BYTES)
        if "row" not in frame:
            return {str(name): frame[name].to_numpy() for name in frame}
        rows = frame["row"].to_numpy()
        table = frame["table"].to_numpy() if "table" in frame else None
    if table is None:
        return {"": rows}
    names, place = np.unique(table, return_inverse=True)
    return {str(name): rows[place == number] for number, name in enumerate(names)}


_HALVINGS, _DEVIATIONS = 40, 3.0


def stream_alpha(rows: Ints, table_rows: int) -> float:
    """The exponent of the Zipf distribution over `table_rows` under which two lookups are as often
    of one row as those of the stream `rows` `[lookups]`; 0 where uniform ones may be (within three
    standard deviations).

    That share, `sum c (c - 1) / (n (n - 1))` over the rows' counts c, estimates the sum of squared
    chances without bias, however many rows were touched (a U-statistic). By bisection.
    """
    counts = np.unique(rows, return_counts=True)[1].astype(np.float64)
    pairs, alike = 0.5 * len(rows) * (len(rows) - 1.0), 0.5 * float(counts @ (counts - 1.0))
    usual = pairs / table_rows
    low, high = 0.0, MAX_ALPHA
    if alike <= usual + _DEVIATIONS * usual**0.5:
        return low
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        drawn = zipf(table_rows, middle, smooth=True)
        is_above = float(drawn.share @ drawn.chance) * pairs > alike
        low, high = (low, middle) if is_above else (middle, high)
    return 0.5 * (low + high)


LOOKUPS = ("aten::embedding_bag", "aten::embedding")
_INDICES = 1  # which input of these ops holds the row numbers; the first is the table
_TYPES = {"long": "<i8", "int": "<i4"}


@dataclass(frozen=True, eq=False)
class TracedTable:
    """All lookups into one table, in the order of the trace: row numbers `[lookups]`."""

    table_rows: int
    dim: int
    rows: Ints


def traced_lookups(path: str | Path) -> list[TracedTable]:
    """What each table of the execution trace (JSON, not gzipped) at `path` was looked up for.

    PyTorch saves integer tensors as raw files `nid_NODE_tid_INPUT.dat` in the folder
    `NAME_resources` beside `NAME.json`, if that folder exists when it records and
    `ENABLE_PYTORCH_EXECUTION_TRACE_SAVE_INTEGRAL_TENSOR_DATA=aten::embedding_bag,aten::embedding`
    is set. Tables are distinguished by the storage of their weights.

    Raises `WorkloadError` where no indices were saved, or a file does not fit its tensor.
    """
    from perfmodel.trace.execution_trace import decode_execution_trace

    path = Path(path)
    folder = path.with_name(path.name.removesuffix(".json") + "_resources")
    trace = decode_execution_trace(read_bytes(path), str(path))
    names = np.array(trace.names(np.arange(len(trace))))
    streams: dict[tuple[int, int, int], list[Ints]] = {}
    for row in np.flatnonzero(np.isin(names, LOOKUPS)).tolist():
        file = folder / f"nid_{trace.node_id[row]}_tid_{_INDICES}.dat"
        if not file.is_file():
            continue
        shapes, values = trace.input_shapes(row), trace.input_values(row)
        kind = str(trace.input_types(row)[_INDICES]).removeprefix("Tensor(").split()[0].rstrip(")")
        if kind not in _TYPES:
            raise WorkloadError(f"{file}: indices of type {kind}: expected int or long int")
        raw, item, count = read_bytes(file), np.dtype(_TYPES[kind]), int(np.prod(shapes[_INDICES]))
        if len(raw) != count * item.itemsize:
            raise WorkloadError(f"{file}: {len(raw)} bytes for {count} indices of {item.itemsize}")
        numbers = np.frombuffer(raw, item).astype(np.int64)
        table_rows = shapes[0][0]
        if count and not (numbers.min() >= 0 and numbers.max() < table_rows):
            raise WorkloadError(f"{file}: a row outside of the table's {table_rows}")
        streams.setdefault((values[0][1], *shapes[0]), []).append(numbers)
    if not streams:
        raise WorkloadError(
            f"{folder}: holds no indices of {' or '.join(LOOKUPS)}: "
            "see perfmodel.embedding.index_streams"
        )
    return [
        TracedTable(table_rows, dim, np.concatenate(parts))
        for (_, table_rows, dim), parts in streams.items()
    ]
