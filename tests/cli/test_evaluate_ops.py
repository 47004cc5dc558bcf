"""`perfmodel evaluate ops`."""

from __future__ import annotations

import json
from pathlib import Path

from cli.conftest import Run
from cli.samples import check_schema, document


def test_operators_with_shapes(run: Run, tmp_path: Path) -> None:
    content, path = document(), tmp_path / "trace.json"
    for event in content["traceEvents"]:
        if event["name"] == "aten::mm":
            event["args"] = {"Input Dims": [[64, 64], [64, 64]], "Input type": ["float", "float"]}
    path.write_text(json.dumps(content))
    ran = run("evaluate", "ops", path, "--by-op")
    assert (ran.status, "aten::mm" in ran.out) == (0, True)
    answer = json.loads(run("evaluate", "ops", path, "--format", "json").out)
    check_schema("evaluation.ops", answer)
    assert [(row["name"], row["n"]) for row in answer["rows"]] == [("gemm", 3)]
    assert answer["all"]["n"] == 3


def test_nothing_to_evaluate_is_an_error_that_says_what_to_name(run: Run) -> None:
    ran = run("evaluate", "ops")
    assert ran.status == 2
    assert "give a trace" in ran.err
