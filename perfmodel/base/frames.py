"""CSV and Parquet files to pandas frames or rows, within limits; of damaged ones one line."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.files import read_bytes
from perfmodel.base.registry import library
from perfmodel.errors import ModelError, PerfmodelError

if TYPE_CHECKING:
    import pandas as pd


MAX_TABLE_BYTES = 500_000_000
MAX_COLUMNS = 1_000


def read_frame(
    path: str | Path,
    *,
    max_bytes: int = MAX_TABLE_BYTES,
    error: type[PerfmodelError] = PerfmodelError,
    **options: Any,
) -> pd.DataFrame:
    """The table in a CSV file (gzip or not; `options` as of pandas) or a Parquet file; the content
    decides.

    Raises `error`, naming the file, for what is neither, and for more than `max_bytes`, also of
    cells that Parquet would unpack to.
    """
    try:
        content = read_bytes(Path(path), max_bytes=max_bytes)
        return frame_of(content, max_bytes=max_bytes, **options)
    except PerfmodelError as problem:
        raise error(str(problem)) from None
    except ValueError as problem:
        raise error(f"{path}: cannot be read as a table: {problem}") from None


def frame_of(content: bytes, *, max_bytes: int = MAX_TABLE_BYTES, **options: Any) -> pd.DataFrame:
    """The table in the content of a file; `ValueError` in one line for what is none."""
    import pandas as pd

    try:
        if content.startswith(b"PAR1"):
            return _parquet(content, max_bytes)
        _check_names(pd.read_csv(io.BytesIO(content), header=None, nrows=1).iloc[0].tolist())
        frame = pd.read_csv(io.BytesIO(content), low_memory=False, **options)
    except Exception as problem:  # pyarrow raises whatever it meets in a damaged file
        if isinstance(problem, MemoryError):
            raise
        text = str(problem).strip() or type(problem).__name__
        raise ValueError(text.splitlines()[0][:120]) from None
    if not isinstance(frame.index, pd.RangeIndex):
        raise ValueError("its rows have more fields than its header")
    return frame


def frame_of_records(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Rows as a frame, NaN where one has no value; a column without any is of floats."""
    import pandas as pd

    frame = pd.DataFrame(rows)
    frame = frame.where(frame.notna(), np.nan)
    return frame.astype(dict.fromkeys(frame.columns[frame.isna().all()], "float64"))


def text_rows(
    path: str | Path, *layouts: Sequence[str], error: type[PerfmodelError] = PerfmodelError
) -> list[tuple[str, dict[str, str]]]:
    """Rows of a table as texts by column, each with its file and number; what is missing is empty.

    Raises `error` as `read_frame` does, and where the columns of none of the `layouts` are there.
    """
    frame = read_frame(path, error=error, dtype=str, keep_default_na=False)
    if not any(set(frame).issuperset(layout) for layout in layouts):
        missing = [name for name in layouts[0] if name not in frame]
        raise error(f"{path}: no column {', '.join(missing)}")
    rows = frame.astype(object).where(frame.notna(), "").astype(str).to_dict("records")
    return [(f"{path}: row {number}", row) for number, row in enumerate(rows, start=1)]


def numbers_in(frame: pd.DataFrame, name: str) -> Floats:
    """The column `name` as numbers, NaN where it is empty.

    Raises `ModelError` that names row and column where one is no number.
    """
    import pandas as pd

    column = frame[name]
    if pd.api.types.is_numeric_dtype(column):
        return np.asarray(column, np.float64)
    try:
        found = pd.to_numeric(column, errors="coerce").to_numpy(np.float64)
    except OverflowError:
        raise ModelError(f"column {name}: a whole number beyond 1e308") from None
    bad = np.flatnonzero(np.isnan(found) & column.notna().to_numpy())
    if len(bad):
        value = str(column.iloc[bad[0]])[:40]
        raise ModelError(f"row {bad[0]}: {name} is {value!r}; expected a number")
    return np.asarray(found)


def _check_names(names: Sequence[object]) -> None:
    if len(names) > MAX_COLUMNS:
        raise ValueError(f"it has {len(names):,} columns; at most {MAX_COLUMNS:,} are read")
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"column {str(name)[:40]!r} is there twice")


def _parquet(content: bytes, max_bytes: int) -> pd.DataFrame:
    file = library("pyarrow.parquet").ParquetFile(io.BytesIO(content))
    metadata = file.metadata
    _check_names(file.schema_arrow.names)
    for each in file.schema_arrow:
        if "binary" in str(each.type):
            raise ValueError(f"column {each.name!r} holds bytes, not text")
    cells_bytes = 8 * metadata.num_rows * metadata.num_columns
    stated_bytes = sum(
        metadata.row_group(at).total_byte_size for at in range(metadata.num_row_groups)
    )
    if max(cells_bytes, stated_bytes) > max_bytes:
        raise ValueError(f"its content is above the limit of {max_bytes} bytes")
    return file.read().to_pandas()
