"""`perfmodel evaluate traces`."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from cli.conftest import Run
from cli.samples import check_schema, document, write


def test_a_trace_as_table_json_and_csv(run: Run, trace: Path) -> None:
    ran = run("evaluate", "traces", trace)
    assert (ran.status, "warning" in ran.err) == (0, False)
    for text in (trace.name, "Tesla V100", "replay (in-sample)", "held out"):
        assert text in ran.out
    answer = json.loads(run("evaluate", "traces", trace, "--format", "json").out)
    check_schema("evaluation", answer)
    kinds = {row["kind"] for row in answer["rows"]}
    assert kinds == {"step_replay", "step_left_out", "null"}
    rows = list(csv.DictReader(run("evaluate", "traces", trace, "-f", "csv").out.splitlines()))
    assert len(rows) == len(answer["rows"])


def test_default_is_the_folder_traces_and_the_demo(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "trace bundled demo, device cpu" in run("evaluate", "traces").out
    (tmp_path / "traces" / "job").mkdir(parents=True)
    for rank in range(2):
        write(tmp_path / "traces" / "job" / f"{rank}.json", document(rank=rank, world_size=2))
    answer = json.loads(run("evaluate", "traces", "--format", "json").out)
    check_schema("evaluation", answer)
    assert [facts["trace"] for facts in answer["traces"]] == ["bundled demo", "traces/job"]
    assert answer["traces"][1]["ranks"] == 2


def test_help_has_an_example(run: Run) -> None:
    assert "perfmodel evaluate traces" in run("evaluate", "--help").out.partition("Examples:")[2]


@pytest.mark.parametrize("words", [("tracks",), ("traces", "nowhere"), ("traces", ".")])
def test_bad_usage(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = run("evaluate", *words)
    assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "internal" not in ran.err
