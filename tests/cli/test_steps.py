"""`--steps` of the verbs that read traces."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

from cli.conftest import Run
from cli.samples import document, write


def test_predict_of_one_step_is_of_that_step(tmp_path: Path, run: Run) -> None:
    content = document(steps=6)
    third = next(e for e in content["traceEvents"] if e["name"] == "ProfilerStep#2")
    third["dur"] -= 10
    path = write(tmp_path / "trace.json", content)
    measured = {}
    for steps in ("2:3", "3:4"):
        (row,) = csv.DictReader(
            io.StringIO(run("predict", path, "--steps", steps, "-f", "csv").out)
        )
        measured[steps] = float(row["measured_us"])
    assert measured == {"2:3": 89.0, "3:4": 99.0}


def test_steps_that_make_no_sense(tmp_path: Path, run: Run) -> None:
    path = write(tmp_path / "trace.json", document(steps=3))
    for verb in ("predict", "breakdown"):
        for steps in ("0-2", "7:9", "2:1"):
            assert run(verb, path, "--steps", steps).status == 2
    assert run("predict", "--workload", "criteo-kaggle", "--steps", "1:2").status == 2


def test_steps_by_a_name_and_the_machine_that_a_trace_is_of(tmp_path: Path, run: Run) -> None:
    content = document(steps=4)
    for each in content["traceEvents"]:
        each["name"] = each["name"].replace("ProfilerStep#", "my loop ")
    content["deviceProperties"] = [{"name": "NVIDIA H900"}]
    path = write(tmp_path / "trace.json", content)
    by = ("--steps-by", "my loop", "--format", "json")
    found = json.loads(run("breakdown", path, *by, "--steps", "1:3").out)
    assert [step["name"] for step in found["ranks"][0]["steps"]] == ["my loop 1", "my loop 2"]
    assert json.loads(run("diff", path, path, *by).out)["changes"]
    checked = ("check", path, "--baseline", tmp_path / "errors.json", "--update", *by)
    assert json.loads(run(*checked).out)["passed"]
    assert "--steps-by 'my loop'" in found["gains"][0]["command"]
    on = ("predict", path, *by, "--hardware", "h100-sxm")
    assert "--source" in run(*on).err
    assert json.loads(run(*on, "--source", "a100-sxm-80gb").out)["results"][0]["step_us"] > 0
    refused = run("predict", path, "--steps-by", "your loop")
    assert refused.status == 2
    assert "most frequent are my loop 0 (1)" in refused.err
