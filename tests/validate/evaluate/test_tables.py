"""Measurement tables beside a device's file."""

from __future__ import annotations

import csv
import hashlib
from pathlib import Path

import pytest

from perfmodel.cost.durations import durations_of
from perfmodel.errors import PerfmodelError
from perfmodel.hardware import device
from perfmodel.ops.rows import Rows
from perfmodel.validate.evaluate.kernels import TableJob, find_tables, table_rows

DEVICE = 'extends = "v100-sxm2-16gb"\nname = "mine"\n'
LINEAR, ADD = (
    {"op": "linear", "m": 512, "n": 512, "k": 512},
    {"op": "add", "rows": 512, "cols": 512},
)


def _table(path: Path, factor: float = 1.0) -> Path:
    """Two rows that took `factor` times what the models say."""
    us = durations_of(Rows.of([LINEAR, ADD]), device("v100-sxm2-16gb")).duration_us * factor
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "op,device,m,n,k,rows,cols,duration_us\n"
        f"linear,Mine,512,512,512,,,{us[0]}\nadd,Mine,,,,512,512,{us[1]}\n"
    )
    return path


def test_tables_below_a_devices_file_are_its(tmp_path: Path) -> None:
    root = tmp_path / "traces"
    _table(root / "set" / "kernels.csv")
    (root / "set" / "notes.csv").write_text("a,b\n1,2\n")
    assert find_tables([root]) == []
    (root / "mine.toml").write_text(DEVICE)
    (job,) = find_tables([root])
    assert job == TableJob("traces/set/kernels.csv", root / "set/kernels.csv", root / "mine.toml")


def test_a_table_of_a_device_of_another_kind_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('extends = "generic-cpu"\naliases = ["Mine"]\n')
    table = _table(tmp_path / "kernels.csv")
    assert len(find_tables([tmp_path])) == 1
    whole = table.read_text()
    table.write_text(whole.replace("Mine", "NVIDIA H200"))
    assert find_tables([tmp_path]) == []
    table.write_text(whole.replace("Mine", "x" * (csv.field_size_limit() + 1), 1))
    assert len(find_tables([tmp_path])) == 1, "no device's name: what reads it says what is wrong"


def test_a_table_that_the_device_was_fitted_on_is_left_out(tmp_path: Path) -> None:
    table = _table(tmp_path / "kernels.csv")
    digest = hashlib.sha256(table.read_bytes()).hexdigest()
    (tmp_path / "mine.toml").write_text(f"# kernels.csv: sha256 {digest}\n{DEVICE}")
    assert find_tables([tmp_path]) == []


def test_rows_are_errors_by_family(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(DEVICE)
    _table(tmp_path / "kernels.csv", factor=0.8)
    (job,) = find_tables([tmp_path])
    rows = {row["name"]: row for row in table_rows(job)}
    assert set(rows) == {"matmul", "vector"}
    assert rows["matmul"]["median_pct"] == pytest.approx(25, abs=0.01)
    assert rows["matmul"]["trace"] == f"{tmp_path.name}/kernels.csv"


def test_a_bad_table_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(DEVICE)
    path = tmp_path / "kernels.csv"
    path.write_text("op,device,m,n,k,duration_us\nlinear,Mine,512,,512,10\n")
    with pytest.raises(PerfmodelError, match=r"kernels\.csv.*linear.*n is missing"):
        table_rows(find_tables([tmp_path])[0])
