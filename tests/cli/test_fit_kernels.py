"""`perfmodel fit kernels` and `perfmodel evaluate kernels`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from cost.kernels.test_learned_store import measured


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "data.parquet"
    measured().to_parquet(path)
    return path


@pytest.mark.slow
def test_fit_counts_its_rows_and_evaluate_every_row(
    run: Callable, table: Path, tmp_path: Path
) -> None:
    models = tmp_path / "models"
    options = ("--data", table, "--rows", 300)
    fitted = run("fit", "kernels", *options, "-o", models)
    assert fitted.status == 0, fitted.err
    assert "fitted on rows: matmul_fp32 600" in fitted.out
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
    assert "coverage" in answer.out


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


def test_a_regressor_of_the_users_is_fitted_stored_and_predicts_where_it_is_trusted(
    run: Callable, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("their_regressors.py").write_text(
        "from sklearn.neighbors import KNeighborsRegressor\n"
        "class Mine(KNeighborsRegressor):\n"
        "    pass\n"
    )
    options = ("--data", table, "--rows", 200, "--estimator", "their_regressors:Mine")
    fitted = run("fit", "kernels", *options, "-o", "models")
    assert fitted.status == 0, fitted.err
    assert json.loads(Path("models/manifest.json").read_text())["about"]["estimator"] == (
        "their_regressors:Mine"
    )
    asked = ("kernel", "mm", "m=4096", "n=4096", "k=4096", "--hardware", "t4", "--format", "json")
    usual, refused, mine = (
        run(*asked, *more)
        for more in ((), ("--models", "models"), ("--models", "models", "--trust-models"))
    )
    assert refused.status == 2
    assert "--trust-models" in refused.err
    assert len(refused.err.strip().splitlines()) == 1
    times = [json.loads(each.out)["results"][0]["duration_us"] for each in (usual, mine)]
    assert times[0] != times[1]
    again = run("evaluate", "kernels", "--data", table, "--models", "models", "--trust-models")
    assert again.status == 0, again.err
    step = ("predict", "--mode", "model", "--hardware", "t4", "--format", "json")
    steps = [
        json.loads(run(*step, *more).out)["results"]
        for more in ((), ("--models", "models", "--trust-models"))
    ]
    assert steps[0] != steps[1]
    replayed = run("predict", "--models", "models", "--trust-models")
    assert replayed.status == 2
    assert "cannot be combined with a replay" in replayed.err


def test_a_regressor_that_is_none_or_fails_is_one_line_and_leaves_nothing(
    run: Callable, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("failing_regressors.py").write_text(
        "from sklearn.linear_model import Ridge\n"
        "class Fails(Ridge):\n"
        "    def fit(self, X, y, sample_weight=None):\n"
        "        raise RuntimeError('no\\nluck')\n"
    )
    for name, said in (
        ("no_such_module_anywhere:X", "No module named"),
        ("sklearn.linear_model:LogisticRegression", "is not a scikit-learn regressor"),
        ("failing_regressors:Fails", "fitting matmul_fp32: no luck"),
    ):
        ran = run("fit", "kernels", "--data", table, "--estimator", name, "-o", "models")
        assert ran.status == 2
        assert said in ran.err
        assert len(ran.err.strip().splitlines()) == 1
        assert not Path("models").exists()
    alone = run("kernel", "mm", "m=8", "n=8", "k=8", "--hardware", "t4", "--trust-models")
    assert alone.status == 2
    assert "needs --models DIR" in alone.err
