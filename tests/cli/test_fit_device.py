"""`perfmodel fit device` and `perfmodel evaluate steps`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli.conftest import Run
from cli.samples import check_schema
from validate.calibrate.test_device import TABLE
from validate.evaluate.test_truth import ROW, _table

from perfmodel import predict
from perfmodel.hardware import node, with_settings
from perfmodel.validate.calibrate.steps import read_steps
from perfmodel.workload import op_graph


def test_a_machine_is_fitted_and_predicts_steps(run: Run, tmp_path: Path) -> None:
    machine = tmp_path / "mine.toml"
    ran = run("fit", "device", "--data", TABLE, "--hardware", "generic-cpu", "-o", machine)
    assert ran.status == 0, ran.err
    assert "Errors on a half held out" in ran.out
    truth = _table(tmp_path / "truth.csv", ROW)
    ran = run("evaluate", "steps", "--truth", truth, "--hardware", machine, "--format", "json")
    assert ran.status == 0, ran.err
    answer = json.loads(ran.out)
    check_schema("evaluation.steps", answer)
    assert answer["rows"][0]["predicted_us"] > 0


def test_bad_input_is_one_line(run: Run, tmp_path: Path) -> None:
    table = _table(tmp_path / "steps.csv", ROW.replace(",1500,", ",0.0,"))
    ran = run("fit", "device", "--data", table, "-o", tmp_path / "mine.toml")
    assert ran.status == 2
    assert "p10_us is 0.0; expected a time above 0" in ran.err
    assert not (tmp_path / "mine.toml").exists()
    truth = _table(tmp_path / "truth.csv", ROW.replace(",cpu,1,", ",cpu,16,"))
    steps = ("evaluate", "steps", "--truth", truth, "--hardware", "h100-sxm")
    ran = run(*steps)
    assert ran.status == 2
    assert (
        "row 1: is not a configuration: ranks is 16; steps of one rank are predicted here"
        in ran.err
    )


@pytest.mark.parametrize(
    "damage",
    [
        {"clock_mhz": "-1"},
        {"cache_bytes": {"L3": -1}},
        {"memory_bytes": 1e300},
        {"usable_cpus": None},
        {"vector": 5},
    ],
)
def test_a_machine_that_cannot_be_is_refused(
    run: Run, tmp_path: Path, damage: dict[str, object]
) -> None:
    table = _table(tmp_path / "mine_steps.csv", ROW)
    record = {"machine": {"gpu": None, "cpu": {"usable_cpus": 2} | damage}}
    (tmp_path / "mine_meta.json").write_text(json.dumps(record))
    ran = run("fit", "device", "--data", table, "-o", tmp_path / "mine.toml")
    assert ran.status == 2
    assert "mine_meta.json: not a record of the collector: " in ran.err


def test_steps_on_a_gpu_are_passes_of_the_workload(run: Run, tmp_path: Path) -> None:
    truth = _table(tmp_path / "truth.csv", ROW)
    words = ("--set", "host.single_thread_ratio=0.5", "--format", "json")
    ran = run("evaluate", "steps", "--truth", truth, "--hardware", "h100-sxm", *words)
    assert ran.status == 0, ran.err
    (row,) = json.loads(ran.out)["rows"]
    (step,) = read_steps(truth)
    slow = with_settings(node("h100-sxm"), ["host.single_thread_ratio=0.5"])
    usual = {"implementation__name": "pytorch", "training__loss": "bce"}
    ops = op_graph(step.workload.with_(**usual))
    (result,) = predict(ops, hardware=[slow]).results
    assert row["predicted_us"] == pytest.approx(result.step_us)
