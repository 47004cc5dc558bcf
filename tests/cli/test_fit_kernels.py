"""`perfmodel fit kernels` and `perfmodel evaluate kernels`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from kernels.test_learned_store import measured


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "data.parquet"
    measured().to_parquet(path)
    return path


@pytest.mark.slow
def test_fit_prints_errors_of_left_out_devices_and_evaluate_counts_every_row(
    run: Callable, table: Path, tmp_path: Path
) -> None:
    models = tmp_path / "models"
    options = ("--data", table, "--test", table, "--rows", 300)
    fitted = run("fit", "kernels", *options, "-o", models)
    assert fitted.status == 0, fitted.err
    assert "Each device left out in turn" in fitted.out
    assert "On the tables to test on" in fitted.out
    assert "roofline" in fitted.out
    answer = run("evaluate", "kernels", "--data", table, "--models", models, "--format", "json")
    assert answer.status == 0, answer.err
    found = json.loads(answer.out)
    assert found["schema"] == "perfmodel.evaluation/1"
    assert sum(row["n"] for row in found["rows"]) == len(pd.read_parquet(table))
    assert set(found["rows"][0]) == {
        *("op", "device", "dtype", "n", "mape_pct", "gmae_pct", "median_pct", "bias_pct"),
        *("coverage_frac", "width_frac"),
    }
    again = run("fit", "kernels", "--data", table, "-o", models)
    assert again.status == 2
    assert "exists already" in again.err


def test_evaluate_works_with_the_default_models(run: Callable, table: Path) -> None:
    answer = run("evaluate", "kernels", "--data", table)
    assert answer.status == 0, answer.err
    assert "within" in answer.out


def test_bad_input_is_one_line(run: Callable, table: Path, tmp_path: Path) -> None:
    text = tmp_path / "no.parquet"
    text.write_text("not parquet")
    for arguments in (
        ("fit", "kernels", "--data", text, "-o", tmp_path / "out"),
        ("fit", "kernels", "--data", tmp_path / "missing.csv", "-o", tmp_path / "out"),
        ("fit", "kernels", "--data", table, "-o", tmp_path / "no" / "out"),
        ("evaluate", "kernels", "--data", table, "--models", tmp_path),
    ):
        answer = run(*arguments)
        assert answer.status == 2
        assert len(answer.err.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()
