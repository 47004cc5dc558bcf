"""`perfmodel evaluate pairs`."""

from __future__ import annotations

import json
from pathlib import Path

from cli.conftest import Run
from cli.samples import check_schema
from validate.evaluate.test_pairs import A100, V100, _trace


def test_both_ways_with_what_needs_no_model(run: Run, tmp_path: Path) -> None:
    one = _trace(tmp_path / "v100.json", V100, 600, 300)
    other = _trace(tmp_path / "a100.json", A100, 400, 200)
    ran = run("evaluate", "pairs", one, other)
    assert ran.status == 0
    assert "source v100-sxm2-16gb, target a100-sxm-80gb" in ran.out
    assert "step same" in ran.out
    answer = json.loads(run("evaluate", "pairs", one, other, "--format", "json").out)
    check_schema("evaluation.pairs", answer)
    assert [each["target"] for each in answer["directions"]] == ["a100-sxm-80gb", "v100-sxm2-16gb"]


def test_a_trace_without_its_pair_is_an_error(run: Run, tmp_path: Path) -> None:
    ran = run("evaluate", "pairs", _trace(tmp_path / "v100.json", V100, 600, 300))
    assert ran.status == 2
    assert "expected pairs" in ran.err
