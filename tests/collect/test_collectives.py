"""Collectives over two Gloo ranks, and the order of their cases."""

import csv
import json
from itertools import islice
from pathlib import Path

import pytest

from perfmodel.collect.cli import main
from perfmodel.collect.collectives import BYTES, MAX_BYTES, OPS, collective_cases


def test_cases_take_turns_and_split_evenly() -> None:
    cases = list(collective_cases("cpu", 3))
    assert {op for op, _ in islice(cases, len(OPS))} == set(OPS)
    assert sum(op == "barrier" for op, _ in cases) == 1
    assert all(size % 3 == 0 and 0 < size * BYTES <= MAX_BYTES["cpu"] for _, size in cases)
    sizes = [size for op, size in cases if op == "all_to_all"]
    assert min(sizes) < 30
    assert max(sizes) > 1_000_000


def test_one_rank_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["collectives", "--ranks", "1", "-o", str(tmp_path)]) == 2
    assert "needs at least 2" in capsys.readouterr().err


def test_two_ranks_measure(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs PyTorch: the CPU build is enough")
    words = ["collectives", "--minutes", "0.02", "--device", "cpu", "-o", str(tmp_path)]
    assert main(words) == 0
    with (tmp_path / "collectives.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len({(row["op"], row["elements"]) for row in rows}) == len(rows)
    ops = [row["op"] for row in rows]
    assert len(set(ops[:3])) == min(len(ops), 3)  # every op before sizes of one
    assert {(row["ranks"], row["library"]) for row in rows} == {("2", "gloo")}
    assert all(0 < float(row["duration_us"]) <= float(row["median_us"]) for row in rows)
    meta = json.loads((tmp_path / "collectives_meta.json").read_text())
    assert meta["rows"] == len(rows) > 0
