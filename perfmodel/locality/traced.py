"""Index streams that an execution trace saved beside itself."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.errors import WorkloadError
from perfmodel.files import read_bytes
from perfmodel.locality.stack import Ints

LOOKUPS = ("aten::embedding_bag", "aten::embedding")
_INDICES = 1
"""Which input of these ops holds the row numbers; the first is the table."""
_FILE = re.compile(r"nid_(\d+)_tid_(\d+)\.dat")
_TYPES: dict[str, np.dtype[np.signedinteger[Any]]] = {
    "long": np.dtype("<i8"),
    "int": np.dtype("<i4"),
}


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
    is set. Tables are told apart by the storage of their weights.

    Raises `WorkloadError` where no indices were saved, or a file does not fit its tensor.
    """
    from perfmodel.trace.execution_trace import decode_execution_trace

    path = Path(path)
    folder = path.with_name(path.name.removesuffix(".json") + "_resources")
    saved = {tuple(map(int, found.groups())): file for file, found in _saved(folder)}
    trace = decode_execution_trace(read_bytes(path), str(path))
    names = np.array(trace.names(np.arange(len(trace))))
    streams: dict[tuple[int, int, int], list[Ints]] = {}
    for row in np.flatnonzero(np.isin(names, LOOKUPS)).tolist():
        file = saved.get((int(trace.node_id[row]), _INDICES))
        if file is None:
            continue
        shapes, values = trace.input_shapes(row), trace.input_values(row)
        kind = str(trace.input_types(row)[_INDICES]).removeprefix("Tensor(").split()[0].rstrip(")")
        numbers = _row_numbers(file, kind, int(np.prod(shapes[_INDICES])), shapes[0][0])
        streams.setdefault((values[0][1], *shapes[0]), []).append(numbers)
    if not streams:
        raise WorkloadError(
            f"{folder}: holds no indices of {' or '.join(LOOKUPS)}: see perfmodel.locality.traced"
        )
    return [
        TracedTable(table_rows, dim, np.concatenate(parts))
        for (_, table_rows, dim), parts in streams.items()
    ]


def _saved(folder: Path) -> list[tuple[Path, re.Match[str]]]:
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    matches = [(file, _FILE.fullmatch(file.name)) for file in files]
    return [(file, found) for file, found in matches if found]


def _row_numbers(file: Path, kind: str, count: int, table_rows: int) -> Ints:
    if kind not in _TYPES:
        raise WorkloadError(f"{file}: indices of type {kind}: expected int or long int")
    raw, item = read_bytes(file), _TYPES[kind]
    if len(raw) != count * item.itemsize:
        raise WorkloadError(f"{file}: {len(raw)} bytes for {count} indices of {item.itemsize}")
    rows = np.frombuffer(raw, item).astype(np.int64)
    if len(rows) and not (rows.min() >= 0 and rows.max() < table_rows):
        raise WorkloadError(f"{file}: a row outside of the table's {table_rows}")
    return rows
