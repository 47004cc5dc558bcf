"""The measurement table: schema, resume, damage."""

import csv
import errno
from pathlib import Path
from typing import Any

import pytest

from perfmodel.collect.timing import COLUMNS, IDENTITY, Table, key_of
from perfmodel.errors import PerfmodelError, UsageError

SCHEMA_OF_KERNEL_FILES = (
    *("op", "device", "dtype", "direction", "timing", "b", "m", "n", "k", "rows", "cols"),
    *("batch", "in_channels", "out_channels", "kernel_size", "input_size", "stride", "padding"),
    "duration_us",
)


def row(**changes: Any) -> dict[str, Any]:
    base = {"op": "add", "device": "X", "dtype": "fp32", "direction": "fwd", "rows": 4, "cols": 2}
    return {**base, "timing": "host_wall_sync", "duration_us": 1.25, "repeats": 9, **changes}


def test_columns_hold_the_schema_of_every_kernel_file() -> None:
    assert set(SCHEMA_OF_KERNEL_FILES) <= set(COLUMNS)
    assert len(set(COLUMNS)) == len(COLUMNS)


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    table = Table(tmp_path / "t.csv")
    table.add([row(), row(rows=8, zipf_alpha=1.05)])
    with (tmp_path / "t.csv").open() as file:
        read = list(csv.DictReader(file))
    assert [r["rows"] for r in read] == ["4", "8"]
    assert read[1]["zipf_alpha"] == "1.05"
    assert read[0]["b"] == ""


def test_an_existing_table_is_resumed(tmp_path: Path) -> None:
    Table(tmp_path / "t.csv").add([row(zipf_alpha=0.0)])
    again = Table(tmp_path / "t.csv")
    assert len(again) == 1
    assert row(zipf_alpha=0.0, duration_us=99.0) in again
    assert row(zipf_alpha=0.5) not in again
    again.add([row(zipf_alpha=0.5)])
    assert len(Table(tmp_path / "t.csv")) == 2


def test_a_last_line_cut_short_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    Table(path).add([row(), row(rows=8)])
    path.write_text(path.read_text()[:-7])
    table = Table(path)
    assert len(table) == 1
    table.add([row(rows=8)])
    assert len(Table(path)) == 2


def test_a_table_of_other_columns_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UsageError, match="columns are not those"):
        Table(tmp_path / "t.csv")


def test_an_unknown_column_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PerfmodelError, match="colour"):
        Table(tmp_path / "t.csv").add([row(colour="red")])


def test_a_full_disk_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(tmp_path / "t.csv")
    table.add([row()])

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(PerfmodelError, match="No space left on device; 1 rows are kept"):
        table.add([row(rows=8)])


def test_the_key_is_the_same_for_values_and_their_text() -> None:
    values = {"op": "x", "zipf_alpha": 0.0, "pooling": 3}
    text = {**dict.fromkeys(IDENTITY, ""), "op": "x", "zipf_alpha": "0", "pooling": "3"}
    assert key_of(values) == key_of(text)
