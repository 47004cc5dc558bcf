"""Operators inside real steps: what a mode sees, how samples are kept, what the tables say."""

import csv
import gzip
import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfmodel.collect.cli import build_parser, main
from perfmodel.collect.configurations import (
    Samples,
    calibration_configs,
    dims_of,
    rough_step_us,
)
from perfmodel.collect.families import kronecker
from perfmodel.collect.ops import OP_COLUMNS, STEP_COLUMNS, op_rows
from perfmodel.collect.timing import write_table

OP: dict[str, Any] = {
    "op": "aten::add.Tensor",
    "phase": "forward",
    "node": "",
    "input_shapes": [[2, 3], [2, 3]],
    "input_dtypes": ["float32", "float32"],
    "input_layouts": ["contiguous", "transposed"],
    "output_shapes": [[2, 3]],
    "scalars": {"alpha": 1},
    "unique_rows": 0,
}


def sampled() -> Samples:
    """Two places of one operator and one of another, over two metered steps."""
    taken = Samples(signature=[OP, {**OP, "op": "aten::clone"}, OP])
    taken.rounds_us = [[20.0, 30.0], [22.0]]
    for _ in range(2):
        taken.op_us.append(np.array([1.0, 100.0, 3.0]))
        taken.metered_us.append(130.0)
    return taken


def rows_of(path: Path) -> list[dict[str, str]]:
    content = path.read_bytes()
    text = gzip.decompress(content) if path.suffix == ".gz" else content
    return list(csv.DictReader(text.decode().splitlines()))


def test_no_configuration_comes_twice() -> None:
    dims = [{**dims_of(config), "name": ""} for config in islice(calibration_configs(), 400)]
    assert len({json.dumps(found) for found in dims}) == len(dims)


def test_the_calibration_spans_the_space() -> None:
    configs = list(islice(calibration_configs(), 150))
    assert {min(len(c.rows) for c in configs), max(len(c.rows) for c in configs)} == {1, 26}
    assert any(len(set(config.rows)) == 2 for config in configs)
    assert any(config.zipf_alpha > 1 for config in configs)
    assert sum(config.zipf_alpha == 0 for config in configs) > 30
    assert all(1_000 < rough_step_us(config) < 60_000 for config in configs)
    assert sum(config.held_bytes for config in configs) < 16e9
    for low, high, of in ((4_000, 400_000, "rows"), (16, 128, "dim"), (64, 2_048, "batch")):
        values = [max(c.rows) if of == "rows" else getattr(c, of) for c in configs]
        assert sum(value <= low for value in values) >= 10, of
        assert sum(value >= high for value in values) >= 5, of


def test_points_fill_a_box_of_many_dims() -> None:
    points = np.array([kronecker(index, 10) for index in range(64)])
    assert points.min() > 0
    assert points.max() < 1
    for column in points.T:
        assert np.histogram(column, 8, (0, 1))[0].min() >= 4


def test_rows_count_their_places_and_sum_up() -> None:
    first, second = op_rows("one", sampled(), "X", "dispatch_mode")
    assert (first["count"], first["duration_us"]) == (2, pytest.approx(2.0))
    assert second["op"] == "aten::clone"
    assert second["duration_us"] == pytest.approx(100.0)
    assert first["unique_rows"] is None
    assert op_rows("none", Samples(), "X", "dispatch_mode") == []


def test_a_step_is_told_with_and_without_the_meter() -> None:
    figures = sampled().figures()
    assert (figures["rounds"], figures["steps"], figures["ops_per_step"]) == (2, 3, 3)
    assert figures["ops_sum_p10_us"] == pytest.approx(104.0)
    assert figures["metered_p10_us"] == pytest.approx(130.0)
    assert set(figures) <= set(STEP_COLUMNS)


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
def test_a_table_is_plain_or_packed(name: str, tmp_path: Path) -> None:
    write_table(tmp_path / name, OP_COLUMNS, op_rows("one", sampled(), "X", "dispatch_mode"))
    row = rows_of(tmp_path / name)[0]
    assert tuple(row) == OP_COLUMNS
    assert json.loads(row["input_shapes"]) == [[2, 3], [2, 3]]
    assert json.loads(row["scalars"]) == {"alpha": 1}
    assert row["unique_rows"] == ""


def test_the_defaults_of_the_verb() -> None:
    parsed = build_parser().parse_args(["ops"])
    assert (parsed.minutes, parsed.configurations, parsed.name) == (5.0, None, "ops")


def test_a_bad_list_is_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="needs PyTorch: the CPU build is enough")
    words = ["ops", "--configs", str(tmp_path / "none.json"), "--device", "cpu"]
    assert main([*words, "-o", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("perfmodel: --configs")
