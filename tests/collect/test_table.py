"""The measurement table: its columns, and what it says."""

import csv
from pathlib import Path
from typing import Any

from perfmodel.collect.timing import COLUMNS, write_table

SCHEMA_OF_KERNEL_FILES = (
    *("op", "device", "dtype", "direction", "timing", "b", "m", "n", "k", "rows", "cols"),
    *("batch", "duration_us"),
)


def row(**changes: Any) -> dict[str, Any]:
    base = {"op": "add", "device": "X", "dtype": "fp32", "direction": "fwd", "rows": 4, "cols": 2}
    return {**base, "timing": "host_wall_sync", "duration_us": 1.25, "repeats": 9, **changes}


def test_columns_hold_the_schema_of_every_kernel_file() -> None:
    assert set(SCHEMA_OF_KERNEL_FILES) <= set(COLUMNS)
    assert len(set(COLUMNS)) == len(COLUMNS)


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    write_table(tmp_path / "t.csv", COLUMNS, [row(), row(rows=8, zipf_alpha=1.05)])
    with (tmp_path / "t.csv").open() as file:
        read = list(csv.DictReader(file))
    assert [r["rows"] for r in read] == ["4", "8"]
    assert read[1]["zipf_alpha"] == "1.05"
    assert read[0]["b"] == ""
