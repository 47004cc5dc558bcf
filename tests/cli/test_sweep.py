"""`perfmodel sweep`: answers, figures, errors of one line."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pandas as pd
import pytest
from cli.conftest import Run
from cli.samples import check_schema


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


def test_the_answer(run: Run, spec: Path, tmp_path: Path) -> None:
    folder = tmp_path / "results"
    line = ["sweep", spec, "-o", folder, "--format", "json", "--sensitivity"]
    status, out, err = run(*line)
    assert status == 0
    assert err.startswith("perfmodel: wrote ")
    answer = json.loads(out)
    check_schema("sweep", answer)
    frame = pd.read_parquet(folder)
    assert answer["points"] == len(frame) == 12
    assert answer["best"]["step_us"]["step_us"] == frame["step_us"].min()
    front = frame.iloc[[row["point"] for row in answer["pareto"]]]
    for _, row in frame.iterrows():
        better = (front["step_us"] <= row["step_us"]) & (
            front["energy_j_per_sample"] <= row["energy_j_per_sample"]
        )
        assert better.any(), "every point is on the front, or beaten by one that is"
    elasticity = {
        row["axis"]: row["elasticity"]
        for row in answer["sensitivity"]["elasticities"]
        if row["objective"] == "step_us"
    }
    assert -1 <= elasticity["host.single_thread_ratio"] < 0
    moved = next(
        row
        for row in answer["sensitivity"]["elasticities"]
        if (row["axis"], row["objective"]) == ("host.single_thread_ratio", "step_us")
    )
    slope = math.log(moved["at_high"] / moved["at_low"]) / math.log(moved["high"] / moved["low"])
    assert moved["elasticity"] == pytest.approx(slope)


def test_the_table_and_figures(run: Run, spec: Path, tmp_path: Path) -> None:
    folder = tmp_path / "results"
    status, out, _ = run("sweep", spec, "-o", folder, "--figure", tmp_path / "front.png")
    assert status == 0
    assert "12 points" in out
    assert "Pareto front" in out
    assert run("sweep", spec, "-o", folder, "--sensitivity", "--figure", tmp_path / "t.pdf")[0] == 0
    for name in ("front.png", "t.pdf"):
        assert (tmp_path / name).stat().st_size > 1000
    rows = run("sweep", spec, "-o", folder, "--format", "csv").out.splitlines()
    assert rows[0].startswith("point,device.hbm_gb_per_s,device.sm_count")
    assert len(rows) == 13


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (["--objective", "beauty"], "objective 'beauty': expected one of step_us"),
        (["--workers", "2", "--scheduler", "tcp://h:1"], "starts its own cluster"),
        (["--figure", "front.gif"], "by its suffix"),
    ],
)
def test_bad_options(run: Run, spec: Path, tmp_path: Path, more: list[str], expected: str) -> None:
    status, out, err = run("sweep", spec, "-o", tmp_path / "results", *more)
    assert (status, out) == (2, "")
    assert expected in err
    assert err.count("\n") == 1


def test_a_spec_that_is_not_there(run: Run, tmp_path: Path) -> None:
    status, _, err = run("sweep", tmp_path / "none.toml")
    assert status == 2
    assert "none.toml" in err


def test_a_grid_that_takes_days_is_asked_about(run: Run, spec: Path, tmp_path: Path) -> None:
    spec.write_text(
        spec.read_text().replace("[0.5, 2.0]", "{ low = 0.5, high = 2.0, steps = 2_000_000 }")
    )
    status, out, err = run("sweep", spec, "-o", tmp_path / "results")
    assert (status, out) == (2, "")
    assert "12,000,000 points; --yes sweeps them" in err
    assert not (tmp_path / "results").exists()


WORKLOAD = 'workload = "criteo-kaggle"\nobjective = ["step_us"]\n[axes]\n'


@pytest.mark.parametrize(
    ("axes", "expected"),
    [
        (
            'hardware = ["dgx-1"]\nbatch = [0]',
            "1 of 1 points have no figures; criteo-kaggle: a glo",
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
    status, out, err = run("sweep", spec, "-o", tmp_path / "results")
    assert (status, out) == (2, "")
    assert f"perfmodel: {spec}: " in err
    assert expected in err
    assert "internal error" not in err
