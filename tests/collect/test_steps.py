"""Steps of many DLRMs: the configurations, and tiny ones trained with PyTorch on a CPU."""

import csv
import json
import math
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from collect.tiny_config import TINY, a_run

from perfmodel.collect import steps
from perfmodel.collect.__main__ import build_parser, main
from perfmodel.collect.backend import Backend, open_backend
from perfmodel.collect.families import kronecker
from perfmodel.collect.models.dlrm import DlrmConfig, train_dlrm
from perfmodel.collect.steps import (
    Turns,
    calibration_configs,
    dims_of,
    figures_of,
    rough_step_us,
)


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


def test_tables_of_equal_rows_are_told_together() -> None:
    assert TINY.table_bytes == 3 * 50 * 4 * 4
    assert dims_of(TINY)["rows_per_table"] == "3x50"
    assert dims_of(replace(TINY, rows=(7, 7, 9)))["rows_per_table"] == "2x7 1x9"


def test_figures_are_robust_and_tell_their_own_spread() -> None:
    found = figures_of([[10.0] * 5, [10.5] * 5, [10.0, 400.0]])
    assert found["p10_us"] == pytest.approx(10.0)
    assert (found["rounds"], found["steps"]) == (3, 12)
    assert math.isclose(found["halves_frac"], 0.05)
    assert figures_of([[1.0]])["halves_frac"] is None


def test_points_fill_a_box_of_many_dims() -> None:
    points = np.array([kronecker(index, 10) for index in range(64)])
    assert points.min() > 0
    assert points.max() < 1
    for column in points.T:
        assert np.histogram(column, 8, (0, 1))[0].min() >= 4


def test_the_defaults_of_the_verb() -> None:
    parsed = build_parser().parse_args(["steps"])
    assert parsed.minutes == pytest.approx(5.0)
    assert (parsed.configurations, parsed.name) == (None, "steps")


def test_a_model_out_of_memory_is_noted_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="needs PyTorch: the CPU build is enough")
    cpu = open_backend("cpu")

    def trained(backend: Backend, config: DlrmConfig) -> Any:
        if config.name == "gone":
            raise MemoryError
        return train_dlrm(backend, config)

    monkeypatch.setattr(steps, "train_dlrm", trained)
    listed = [replace(TINY, name="gone"), replace(TINY, name="vast", rows=(10**14,)), TINY]
    turns = Turns(a_run("steps", cpu, tmp_path), listed)
    turns.take(1)
    assert turns.run.skipped == {"gone": "out of memory", "vast": "needs 1600000.0 GB"}
    assert [row["name"] for row in turns.rows()] == ["tiny"]
    nothing = Turns(a_run("steps", cpu, tmp_path), listed[:1])
    nothing.take(2)
    assert nothing.rows() == []


def _measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *configs: DlrmConfig
) -> tuple[int, list[dict[str, str]]]:
    """The exit status, and the table."""
    pytest.importorskip("torch", reason="needs PyTorch: the CPU build is enough")
    monkeypatch.setattr(steps, "calibration_configs", lambda: iter(configs))
    words = ["steps", "--minutes", "5", "--device", "cpu", "-o", str(tmp_path), "--name", "t"]
    status = main(words)
    with (tmp_path / "t.csv").open() as file:
        return status, list(csv.DictReader(file))


def test_a_tiny_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "MAX_ROUNDS", 2)
    status, rows = _measured(tmp_path, monkeypatch, TINY, replace(TINY, name="two"))
    assert status == 0
    assert [row["name"] for row in rows] == ["tiny", "two"]
    assert {row["rounds"] for row in rows} == {"2"}
    assert all(float(row["p10_us"]) > 0 for row in rows)
    meta = json.loads((tmp_path / "t_meta.json").read_text())
    assert meta["rounds"] == 4
    assert meta["command"].endswith("--device cpu --minutes 5.0 --name t")


def test_an_interrupted_run_has_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take = Turns.take

    def interrupted(turns: Turns, most_rounds: int) -> None:
        take(turns, 1)
        raise KeyboardInterrupt

    monkeypatch.setattr(Turns, "take", interrupted)
    status, (row,) = _measured(tmp_path, monkeypatch, TINY)
    assert (status, row["rounds"]) == (130, "1")
