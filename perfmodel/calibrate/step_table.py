"""Tables of measured DLRM step times (`collect truth`, `collect ops`): configurations and times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.arrays import Floats
from perfmodel.collect.records import PARTS, REFERENCE_COLUMNS
from perfmodel.errors import UsageError
from perfmodel.frames import read_frame
from perfmodel.workload import Workload
from perfmodel.workload.load import workload_from_document

if TYPE_CHECKING:
    import pandas as pd


MAX_BYTES = 100_000_000
MAX_RANKS, MAX_THREADS = 1024, 4096
MAX_US = 1e12
MAX_SPREAD = 100.0
COLUMNS = (
    *("name", "ranks", "threads_per_rank", "rows_per_table", "dim", "pooling", "batch_per_rank"),
    *("zipf_alpha", "bottom_mlp", "top_mlp", "p10_us"),
)


@dataclass(frozen=True)
class MeasuredStep:
    """One configuration: its workload, ranks and threads, and its step time.

    `halves_frac` is by how much the robust times of two halves of the rounds differ: the
    measurement's own spread; NaN where it is unknown.
    """

    name: str
    workload: Workload
    ranks: int
    threads: int
    step_us: float
    median_us: float
    halves_frac: float
    where: str = ""
    """File and row."""
    reference_us: tuple[float, ...] = (float("nan"),) * len(PARTS)
    """What the parts of the reference work took beside it; nan where there was none."""

    @property
    def batch(self) -> int:
        """Of all ranks together."""
        return self.workload.batch


def is_step_table(frame: pd.DataFrame) -> bool:
    """Whether a table holds step times of configurations."""
    return set(COLUMNS) <= set(frame.columns)


def read_steps(path: Path) -> list[MeasuredStep]:
    """The configurations of the CSV at `path`; `UsageError` names file and row."""
    frame = read_frame(path, max_bytes=MAX_BYTES, error=UsageError)
    if not is_step_table(frame):
        missing = ", ".join(sorted(set(COLUMNS) - set(frame.columns)))
        raise UsageError(f"{path}: is not a table of step times: it has no column {missing}")
    steps = steps_of(frame, str(path))
    if not steps:
        raise UsageError(f"{path}: no row is a DLRM configuration with a step time")
    return steps


def steps_of(frame: pd.DataFrame, where: str) -> list[MeasuredStep]:
    """The rows that are DLRM configurations; `UsageError` names `where` and the row."""
    steps = []
    readings = readings_of(frame, where).tolist()
    for number, record in enumerate(frame.to_dict("records"), start=1):
        of_dlrm = [record[name] for name in ("rows_per_table", "dim", "pooling")]
        if all(value != value for value in of_dlrm):  # a step of another model
            continue
        try:
            step = _step(record, f"{where}: row {number}")
            steps.append(replace(step, reference_us=tuple(readings[number - 1])))
        except (ValueError, TypeError, OverflowError) as error:
            text = str(error)[:200]
            raise UsageError(f"{where}: row {number}: is not a configuration: {text}") from None
    return steps


def _step(record: Mapping[str, Any], where: str) -> MeasuredStep:
    ranks = _within(record, "ranks", 1, MAX_RANKS)
    bottom, top = (_whole_numbers(record, key, "-") for key in ("bottom_mlp", "top_mlp"))
    about = {key: float(record[key]) for key in ("dim", "pooling")}
    alpha = float(record["zipf_alpha"])
    document = {
        "batch": float(record["batch_per_rank"]) * ranks,
        "model": {"dense_features": bottom[0], "bottom_mlp": bottom[1:], "top_mlp": top},
        "tables": [
            {**about, "alpha": alpha, "count": count, "rows": rows}
            for count, rows in map(_repeated, _words(record["rows_per_table"]))
        ],
    }
    step_us, name = _time(record, "p10_us"), record["name"]
    if not isinstance(name, str):  # a number, or none
        name = "" if name != name else str(name)
    return MeasuredStep(
        name=name,
        workload=workload_from_document(document, name, where),
        ranks=ranks,
        threads=_within(record, "threads_per_rank", 1, MAX_THREADS),
        step_us=step_us,
        median_us=_time(record, "median_us") if "median_us" in record else step_us,
        halves_frac=_spread(record.get("halves_frac", float("nan"))),
        where=where,
    )


def _within(record: Mapping[str, Any], key: str, low: int, high: int) -> int:
    value = float(record[key])
    if not low <= value <= high or int(value) != value:
        raise ValueError(f"{key} is {record[key]}; expected a whole number from {low} to {high}")
    return int(value)


def _time(record: Mapping[str, Any], key: str) -> float:
    value = float(record[key])
    if not 0 < value < MAX_US:
        raise ValueError(f"{key} is {record[key]}; expected a time above 0")
    return value


def _spread(value: Any) -> float:
    spread = float(value)
    if not (np.isnan(spread) or 0 <= spread <= MAX_SPREAD):
        raise ValueError(f"halves_frac is {value}; expected a share from 0 to {MAX_SPREAD:g}")
    return spread


def _words(rows: Any) -> list[str]:
    """`8x1000 500`; pandas reads a column of numbers alone as numbers."""
    if isinstance(rows, str):
        return rows.split()
    if rows != rows:
        raise ValueError("rows_per_table is missing")
    return [f"{rows:.0f}" if rows == int(rows) else str(rows)]


def _whole_numbers(record: Mapping[str, Any], key: str, between: str) -> list[int]:
    try:
        return [int(width) for width in str(record[key]).split(between)]
    except ValueError:
        raise ValueError(f"{key} is {record[key]}; expected widths as in 64-256-64") from None


def _repeated(text: str) -> tuple[int, int]:
    """`8x1000` is eight times 1000."""
    count, times, rows = text.rpartition("x")
    try:
        return int(count) if times else 1, int(rows)
    except ValueError:
        raise ValueError(f"rows_per_table: {text}: expected rows, or 8x1000") from None


def readings_of(frame: pd.DataFrame, where: str) -> Floats:
    """The reference columns of a table, microseconds, `[rows, parts]`; nan in a table without."""
    import pandas as pd

    if not set(REFERENCE_COLUMNS) <= set(frame.columns):
        return np.full((len(frame), len(PARTS)), np.nan)
    columns = [pd.to_numeric(frame[name], errors="coerce") for name in REFERENCE_COLUMNS]
    readings: Floats = np.stack([column.to_numpy(np.float64) for column in columns], axis=1)
    given = frame[list(REFERENCE_COLUMNS)].notna().to_numpy()
    bad = np.argwhere(given & ~(np.isfinite(readings) & (readings > 0)))
    if len(bad):
        row, part = bad[0].tolist()
        name = REFERENCE_COLUMNS[part]
        value = str(frame[name].iloc[row])[:40]
        raise UsageError(f"{where}: row {row + 1}: {name} is {value}; expected a time above 0")
    return readings
