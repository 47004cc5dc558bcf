"""The tool reads what it wrote: answers in JSON as input of `diff`, `report` and `--workload`."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from cli.conftest import Run
from cli.samples import ROOT, check_schema, document, write
from slow import slow_but

RANKS = ROOT / "traces" / "cpu_dlrm_2rank"
WORDS = {
    "compare": ("compare", "--workload", "criteo-kaggle", "--designs", "default"),
    "plan": ("plan", "--workload", "criteo-kaggle"),
}


def stored(run: Run, path: Path, *words: object) -> Path:
    assert run(*words, "-o", path).status == 0
    return path


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_breakdown_is_the_trace_that_it_is_of(
    run: Run, tmp_path: Path, trace: Path, ranks: int
) -> None:
    recorded = trace if ranks == 1 else RANKS
    # of two ranks, two steps are as near to the median: either may have the path that is shown
    groups = ("step", "critical path")[: 3 - ranks]
    saved = stored(run, tmp_path / "saved.json", "breakdown", recorded)
    for pair in ((saved, recorded), (recorded, saved), (saved, saved)):
        answer = json.loads(run("diff", *pair, "--fail-over", "step=1%,comm=1%", "-f", "json").out)
        check_schema("diff", answer)
        assert {held["rank"] for held in answer["held"]} == set(range(ranks))
        steps = [each for each in answer["changes"] if each["group"] in groups]
        assert {each["group"] for each in steps} == set(groups)
        assert max(each["a_us"] for each in steps) > 50
        assert all(abs(each["change_us"]) < 0.01 for each in steps)


def test_a_slower_trace_is_as_much_slower_in_its_breakdown(
    run: Run, tmp_path: Path, trace: Path
) -> None:
    content = document()
    for each in content["traceEvents"]:
        each["ts"], each["dur"] = each["ts"] * 2, each["dur"] * 2
    slow = write(tmp_path / "slow.json.gz", content)
    a = stored(run, tmp_path / "a.json", "breakdown", trace)
    b = stored(run, tmp_path / "b.json", "breakdown", slow)
    ran = run("diff", a, b, "--fail-over", "step=5%", "-f", "brief")
    assert ran.status == 1
    told = json.loads(ran.out)["answer"][0]
    assert told["failed"]
    assert told["verdict"].startswith("100.0 % slower")
    assert run("diff", a, b, "--fail-over", "step=5%", "-f", "github").out.startswith("::error ")


@pytest.mark.parametrize("verb", slow_but(1, WORDS))
def test_a_comparison_and_a_plan_have_a_page_and_no_difference(
    run: Run, tmp_path: Path, verb: str
) -> None:
    path = stored(run, tmp_path / "it.json", *WORDS[verb], "--hardware", "dgx-a100-40gb")
    page = stored(run, tmp_path / "page.html", "report", path).read_text()
    assert "dgx-a100-40gb" in page
    assert page.count("<table") >= 2
    ran = run("diff", path, path)
    assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert f"{json.loads(path.read_text())['schema']}: diff compares traces and " in ran.err


def test_a_path_that_is_damaged_is_one_line(run: Run, tmp_path: Path, trace: Path) -> None:
    saved = stored(run, tmp_path / "saved.json", "breakdown", trace)
    answer = json.loads(saved.read_text())
    for step in answer["ranks"][0]["steps"]:
        step["critical_path_by_kind"] = {"compute": "long"}
    saved.write_text(json.dumps(answer))
    ran = run("diff", saved, trace)
    assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "compute is 'long'; expected a number" in ran.err


def test_answers_without_rows_or_columns_have_a_page(run: Run, tmp_path: Path) -> None:
    path, page = tmp_path / "empty.json", tmp_path / "page.html"
    for answer in ({"designs": []}, {"designs": [{"design": "x", "parts": [{"of": [1]}]}]}):
        path.write_text(json.dumps({"schema": "perfmodel.compare/1"} | answer))
        stored(run, page, "report", path)
        assert page.read_text().startswith("<!doctype html>")


def test_a_workload_in_json_is_the_workload(run: Run, tmp_path: Path) -> None:
    saved = stored(run, tmp_path / "mine.json", "workload", RANKS)
    asked = ("--hardware", "dgx-a100-40gb", "--format", "json")
    own, read = (
        json.loads(run("predict", "--workload", each, *asked).out)["results"][0]["step_us"]
        for each in (RANKS, saved)
    )
    assert read == pytest.approx(own, rel=0.01)


def test_what_does_not_fit_is_one_line(run: Run, tmp_path: Path, trace: Path) -> None:
    kernel = ("kernel", "mm", "m=8", "n=8", "k=8", "--hardware", "t4")
    saved = stored(run, tmp_path / "kernel.json", *kernel)
    brief = tmp_path / "brief.json"
    assert run(*kernel, "--format", "brief", "-o", brief).status == 0
    cut = tmp_path / "cut.json"
    cut.write_text(saved.read_text()[:-9])
    for words, said in (
        (("diff", saved, trace), "perfmodel.kernel/1: diff compares traces and perfmodel.pred"),
        (("diff", trace, brief), "perfmodel.brief/1: perfmodel "),
        (("diff", cut, trace), "cut.json: not a sound perfmodel.kernel/1: "),
        (("report", cut, "-o", tmp_path / "x.html"), "cut.json: not a sound perfmodel.kernel/1: "),
        (("report", saved, "--batch", "4", "-o", tmp_path / "x.html"), "with a stored answer"),
        (("predict", "--workload", saved, "--hardware", "t4"), "a workload is the JSON of perfm"),
    ):
        ran = run(*words)
        assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1), words
        assert said in ran.err
    assert not (tmp_path / "x.html").exists()


@pytest.mark.parametrize("key", ["ranks", "summary", "gains"])
@pytest.mark.parametrize("value", [None, 3, [{}], [3], {"a": 5}])
def test_a_damaged_breakdown_is_one_line(
    run: Run, tmp_path: Path, trace: Path, key: str, value: object
) -> None:
    saved = stored(run, tmp_path / "saved.json", "breakdown", trace)
    saved.write_text(json.dumps(json.loads(saved.read_text()) | {key: value}))
    for words in (("diff", saved, trace), ("report", saved, "-o", tmp_path / "page.html")):
        ran = run(*words)
        assert ran.status == 0 or (ran.status, ran.err.count("\n")) == (2, 1)
        assert "internal error" not in ran.err


def test_an_answer_is_read_packed_and_from_standard_input(
    run: Run, tmp_path: Path, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = stored(run, tmp_path / "saved.json.gz", "breakdown", trace)
    assert run("diff", packed, trace).out.startswith("no change")
    plain = stored(run, tmp_path / "saved.json", "breakdown", trace)
    for saved in (plain, packed):
        stdin = io.TextIOWrapper(io.BufferedReader(io.BytesIO(saved.read_bytes())))
        monkeypatch.setattr(sys, "stdin", stdin)
        page = run("report", "-", "-o", "-")
        assert (page.status, page.err) == (0, "")
        assert page.out.startswith("<!doctype html>")
        assert 'id="answer"' in page.out
