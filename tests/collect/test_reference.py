"""The reference work: its figures, and that it is read."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from perfmodel.collect.cli import main
from perfmodel.collect.timing import (
    PARTS,
    REFERENCE_COLUMNS,
    Reference,
    reference_columns,
    reference_record,
)


def test_the_columns_are_robust_times() -> None:
    readings = [[1.0, 2.0, 3.0, 4.0, 50.0]] * 9 + [[50.0, 60.0, 70.0, 80.0, 9000.0]]
    assert reference_columns(readings) == dict(zip(REFERENCE_COLUMNS, (1, 2, 3, 4), strict=True))
    found = reference_record(readings)
    assert found["readings"] == 10
    assert found["memory"]["median_us"] == pytest.approx(3.0)
    assert found["interrupted_ratio"] == pytest.approx(1.0)
    assert reference_columns([]) == {}
    assert reference_record([]) == {"readings": 0}


def test_what_is_interrupted_takes_longer_in_the_long_run() -> None:
    readings = [[1.0, 2.0, 3.0, 4.0, 75.0]] * 10
    found = reference_columns(readings)
    assert found == pytest.approx(dict(zip(REFERENCE_COLUMNS, (1.5, 3.0, 4.5, 6.0), strict=True)))
    assert reference_record(readings)["interrupted_ratio"] == pytest.approx(1.5)


def test_a_reading_has_every_part() -> None:
    pytest.importorskip("torch", reason="needs PyTorch: the CPU build is enough")
    from perfmodel.collect.backend import open_backend

    reference = Reference(open_backend("cpu"))
    readings = [reference.read_us() for _ in range(5)]
    assert all(len(reading) == len(PARTS) + 1 and min(reading) > 0 for reading in readings)


def test_it_is_measured_alone_and_beside_others(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs PyTorch: the CPU build is enough")
    common = ("--device", "cpu", "--minutes", "0.01", "-o", str(tmp_path))
    assert main(["reference", *common]) == 0
    assert main(["kernels", "--families", "copies", *common]) == 0
    for name in ("reference.json", "kernels_meta.json"):
        record = json.loads((tmp_path / name).read_text())["reference"]
        assert record["readings"] > 0
        assert all(record[part]["p10_us"] > 0 for part in PARTS)
    with (tmp_path / "kernels.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows
    assert all(float(row[name]) > 0 for row in rows for name in REFERENCE_COLUMNS)
