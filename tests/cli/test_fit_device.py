"""`perfmodel fit device` and `perfmodel evaluate steps`."""

from __future__ import annotations

import json
from pathlib import Path

from calibrate.test_device import _frame, _write
from cli.conftest import Run
from cli.samples import check_schema
from evaluate.test_truth import ROW, _table


def test_a_machine_is_fitted_and_predicts_steps(run: Run, tmp_path: Path) -> None:
    table, machine = _write(tmp_path / "kernels.csv", _frame()), tmp_path / "mine.toml"
    ran = run(
        *("fit", "device", "--data", table, "--hardware", "generic-cpu"),
        *("-o", machine, "--format", "json"),
    )
    assert ran.status == 0, ran.err
    answer = json.loads(ran.out)
    check_schema("fit.device", answer)
    assert answer["held_out"][0]["family"] == "vector"
    truth = _table(tmp_path / "truth.csv", ROW)
    ran = run("evaluate", "steps", "--truth", truth, "--hardware", machine, "--format", "json")
    assert ran.status == 0, ran.err
    answer = json.loads(ran.out)
    check_schema("evaluation.steps", answer)
    assert answer["rows"][0]["predicted_us"] > 0


def test_bad_input_is_one_line(run: Run, tmp_path: Path) -> None:
    table = _write(tmp_path / "kernels.csv", _frame(4).assign(duration_us=0.0))
    ran = run("fit", "device", "--data", table, "-o", tmp_path / "mine.toml")
    assert ran.status == 2
    assert "duration_us is 0.0; expected a time above 0" in ran.err
    assert not (tmp_path / "mine.toml").exists()
    truth = _table(tmp_path / "truth.csv", ROW)
    ran = run("evaluate", "steps", "--truth", truth, "--hardware", "h100-sxm")
    assert ran.status == 2
    assert "is a cuda device; expected a CPU" in ran.err
