"""`perfmodel evaluate ops`."""

from __future__ import annotations

import json
from pathlib import Path

from cli.conftest import Run
from cli.samples import check_schema
from tiny import Tiny, float_inputs


def test_ops_of_a_trace(run: Run, tmp_path: Path) -> None:
    tiny = Tiny(device="Tesla V100-SXM2-16GB")
    tiny.step(1, 0, 1000)
    tiny.op("aten::mm", 10, 30, **float_inputs([2048, 1024], [1024, 1024]))
    tiny.launch(15, 20, kernel=(40, 440), name="volta_sgemm_128x64_nn")
    path = tmp_path / "trace.json"
    path.write_bytes(tiny.content())
    ran = run("evaluate", "ops", path)
    assert (ran.status, "matmul" in ran.out) == (0, True)
    answer = json.loads(run("evaluate", "ops", path, "--by-op", "--format", "json").out)
    check_schema("evaluation.ops", answer)
    assert [(row["name"], row["n"]) for row in answer["rows"]] == [("aten::mm", 1)]
    assert answer["all"]["n"] == 1


def test_without_a_device_there_is_nothing_to_score(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "cpu.json"
    tiny = Tiny()
    tiny.step(1, 0, 1000)
    tiny.op("aten::mm", 10, 30)
    path.write_bytes(tiny.content())
    ran = run("evaluate", "ops", path)
    assert (ran.status, ran.out) == (2, "")
    assert "no op with a measured device time" in ran.err


def test_nothing_to_evaluate_is_an_error_that_says_what_to_name(run: Run) -> None:
    ran = run("evaluate", "ops")
    assert ran.status == 2
    assert "give a trace or a folder" in ran.err
