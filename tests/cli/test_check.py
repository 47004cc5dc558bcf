"""`perfmodel check`: passes as it is, fails on an error made worse, refuses what is no baseline."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from cli.conftest import Run
from cli.samples import check_schema, document, write

from perfmodel.base.arrays import Floats
from perfmodel.prediction import run as prediction_run
from perfmodel.prediction import what_if as prediction
from perfmodel.prediction.what_if import Scale
from perfmodel.timeline.graph.types import ExecutionGraph


@pytest.fixture
def baseline(run: Run, trace: Path, tmp_path: Path) -> Path:
    """The errors of `trace`, as they are."""
    path = tmp_path / "baseline.json"
    ran = run("check", "--baseline", path, "--update", trace)
    assert ran.status == 0
    assert "baseline.json: written, " in ran.out
    return path


def test_passes_as_it_is(run: Run, trace: Path, baseline: Path) -> None:
    ran = run("check", "--baseline", baseline, trace)
    assert (ran.status, ran.err) == (0, "")
    assert "none is worse" in ran.out
    answer = json.loads(run("check", "--baseline", baseline, trace, "--format", "json").out)
    check_schema("check", answer)
    assert answer["passed"]
    assert answer["changes"] == []


def test_update_twice_is_the_same_file(run: Run, trace: Path, baseline: Path) -> None:
    before = baseline.read_bytes()
    assert run("check", "--baseline", baseline, "--update", trace).status == 0
    assert baseline.read_bytes() == before


def test_replay_made_10_pct_worse(
    run: Run, trace: Path, baseline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_it_is = prediction.what_if

    def worse(
        graph: ExecutionGraph, duration_us: Floats, scales: Sequence[Scale]
    ) -> tuple[ExecutionGraph, Floats]:
        graph, duration_us = as_it_is(graph, duration_us, scales)
        return graph, duration_us * 1.1

    monkeypatch.setattr(prediction_run, "what_if", worse)
    report = tmp_path / "check.md"
    ran = run("check", "--baseline", baseline, trace, "--markdown", report)
    assert ran.status == 1
    for text in (trace.name, "step_replay", "mape_pct"):
        assert text in ran.out
        assert text in report.read_text()
    ran = run("check", "--baseline", baseline, trace, "--format", "json")
    assert ran.status == 1
    answer = json.loads(ran.out)
    check_schema("check", answer)
    assert not answer["passed"]
    assert {change["kind"] for change in answer["changes"]} == {"step_replay"}


def test_half_the_errors_fail(run: Run, trace: Path, baseline: Path) -> None:
    content = json.loads(baseline.read_text())
    for row in content["rows"]:
        row.update({key: row[key] / 2 for key in row if key.endswith("_pct")})
    baseline.write_text(json.dumps(content))
    assert run("check", "--baseline", baseline, trace).status == 1
    assert run("check", "--baseline", baseline, trace, "--tolerance", "2").status == 0


def test_a_new_trace_is_noted(run: Run, trace: Path, baseline: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other.json", document())
    ran = run("check", "--baseline", baseline, trace, other)
    assert ran.status == 0
    assert "warning: other.json: not in the baseline yet" in ran.out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"schema": "perfmodel.baseline/9", "rows": []}', "--update"),
        ('{"schema": "perfmodel.baseline/2", "rows": [{"trace": "a", "more": 1}]}', "not a valid"),
        ('{"traceEvents": []}', "not a baseline"),
        ("{", "not a baseline"),
    ],
)
def test_bad_baselines(run: Run, trace: Path, tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "b.json"
    path.write_text(text)
    ran = run("check", "--baseline", path, trace, "--markdown", tmp_path / "no.md")
    assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert said in ran.err
    assert "b.json" in ran.err
    assert not (tmp_path / "no.md").exists()


def test_a_trace_that_is_gone(run: Run, baseline: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other.json", document())
    ran = run("check", "--baseline", baseline, other)
    assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "trace.json.gz" in ran.err


@pytest.mark.parametrize(
    "options",
    [
        ("--baseline", "missing.json"),
        ("--baseline", "missing.json", "--update", "--tolerance", "nan"),
        ("--baseline", "nowhere/b.json", "--update"),
        ("--baseline", "missing.json", "--update", "--markdown", "missing.json"),
        ("--update",),
        (),
    ],
)
def test_bad_usage(
    run: Run, trace: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    monkeypatch.chdir(trace.parent)
    ran = run("check", trace, *options)
    assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "internal" not in ran.err
    assert [file.name for file in trace.parent.iterdir()] == [trace.name]


def test_update_does_not_overwrite_another_file(run: Run, trace: Path) -> None:
    before = trace.read_bytes()
    ran = run("check", "--baseline", trace, "--update", trace)
    assert (ran.status, ran.out) == (2, "")
    assert trace.read_bytes() == before


def test_help_has_an_example(run: Run) -> None:
    assert "perfmodel check --baseline" in run("check", "--help").out.partition("Examples:")[2]
