"""`perfmodel sweep`: answers, figures, errors of one line."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pandas as pd
import pytest
from cli.conftest import Run
from cli.samples import check_schema

from perfmodel.errors import UsageError


@pytest.fixture
def spec(trace: Path) -> Path:
    """Twelve machines for a trace of three steps."""
    path = trace.parent / "gpus.toml"
    path.write_text(
        f"""
        trace = "{trace.name}"
        hardware = "dgx-1"
        batch = 64
        objective = ["step_us", "energy"]
        [axes]
        device.hbm_gb_per_s = {{ low = 600, high = 2400, steps = 3 }}
        device.sm_count = [80, 132]
        host.single_thread_ratio = [0.5, 2.0]
        """
    )
    return path


def test_the_answer(run: Run, spec: Path) -> None:
    status, out, _ = run("sweep", spec, "--format", "json", "--sensitivity")
    assert status == 0
    answer = json.loads(out)
    check_schema("sweep", answer)
    frame = pd.read_csv(io.StringIO(run("sweep", spec, "--format", "csv").out))
    assert answer["points"] == len(frame) == 12
    assert answer["best"]["step_us"]["step_us"] == pytest.approx(frame["step_us"].min())
    front = frame.iloc[[row["point"] for row in answer["pareto"]]]
    for _, row in frame.iterrows():
        better = (front["step_us"] <= row["step_us"]) & (
            front["energy_j_per_sample"] <= row["energy_j_per_sample"]
        )
        assert better.any(), "every point is on the front, or beaten by one that is"
    elasticity = {
        row["axis"]: row["elasticity"]
        for row in answer["sensitivity"]
        if row["objective"] == "step_us"
    }
    assert -1 <= elasticity["host.single_thread_ratio"] < 0


def test_workers_are_as_many_as_asked(
    run: Run, spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That they give the same rows is `tests/explore/test_run.py`."""

    def swept(*_: object, workers: int, **__: object) -> None:
        raise UsageError(f"{workers} processes")

    monkeypatch.setattr("perfmodel.explore.sweep", swept)
    assert run("sweep", spec, "--workers", "2").err == "perfmodel: 2 processes\n"


def test_the_table_and_the_figure(run: Run, spec: Path, tmp_path: Path) -> None:
    figure = tmp_path / "front.png"
    status, out, _ = run("sweep", spec, "--sensitivity", "--figure", figure)
    assert status == 0
    for text in ("12 points", "Pareto front", "Elasticities"):
        assert text in out
    assert out.splitlines()[1].startswith("best step ")  # the answer comes first
    head, _, table = out.partition("Points")
    unit, value = head.split("best kWh per ")[1].partition(":")[0].split()
    assert {"kWh", unit, value} <= {*table.split()}  # as its table says it
    assert figure.stat().st_size > 1000
    assert run("sweep", spec, "-o", tmp_path / "points.csv").err.startswith("perfmodel: wrote")
    rows = (tmp_path / "points.csv").read_text().splitlines()
    assert rows[0].startswith("point,device.hbm_gb_per_s,device.sm_count")
    assert len(rows) == 13


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (["--objective", "beauty"], "objective 'beauty': expected one of step_us"),
        (["--figure", "front.gif"], "by its suffix"),
    ],
)
def test_bad_options(run: Run, spec: Path, more: list[str], expected: str) -> None:
    status, out, err = run("sweep", spec, *more)
    assert (status, out) == (2, "")
    assert expected in err
    assert err.count("\n") == 1


def test_a_spec_that_is_not_there(run: Run, tmp_path: Path) -> None:
    status, _, err = run("sweep", tmp_path / "none.toml")
    assert status == 2
    assert "none.toml" in err


def test_a_grid_that_is_too_large(run: Run, spec: Path) -> None:
    spec.write_text(
        spec.read_text().replace("[0.5, 2.0]", "{ low = 0.5, high = 2.0, steps = 2_000_000 }")
    )
    status, out, err = run("sweep", spec)
    assert (status, out) == (2, "")
    assert "a grid of 12,000,000 points: expected at most 10,000,000" in err


WORKLOAD = 'workload = "criteo-kaggle"\nobjective = ["step_us"]\n[axes]\n'


@pytest.mark.parametrize(
    ("axes", "expected"),
    [
        (
            'hardware = ["dgx-1"]\nbatch = [0]',
            "criteo-kaggle: a glo",
        ),
        (
            'hardware = ["dgx-1"]\nbatch = [4096.5]',
            "axis batch: expected a whole number, got '4096",
        ),
        ("hardware = [5]", "axis hardware: expected names or files, got 5"),
        ("host.cores = { low = 1, high = inf, steps = 3 }", "high: expected a number, got inf"),
        (
            "host.cores = { low = 1, high = 9, steps = 1_000_000_000 }",
            "axes.host.cores: steps: expected a whole number from 1 to 1e+07",
        ),
    ],
)
def test_a_sweep_without_an_answer_says_why(
    run: Run, tmp_path: Path, axes: str, expected: str
) -> None:
    spec = tmp_path / "sweep.toml"
    spec.write_text(f"\ufeff{WORKLOAD}{axes}\n")  # begun with a byte order mark, as some editors do
    status, out, err = run("sweep", spec)
    assert (status, out) == (2, "")
    assert f"perfmodel: {spec}: " in err
    assert expected in err
    assert "internal error" not in err
