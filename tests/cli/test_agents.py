"""A script that knows `perfmodel skill` alone answers the questions of the start page."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli.conftest import Run
from cli.samples import ROOT, document, write
from slow import slow_but

NET = """import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)

    def forward(self, x):
        return self.layer(x)


def get_inputs():
    return [torch.zeros(32, 64)]
"""
SPEC = """workload = "criteo-kaggle"
objective = ["step_us", "energy"]
axes = { hardware = ["dgx-a100-80gb", "dgx-h100"], batch = [2048, 4096] }
"""
WORDS = {
    "WORKLOAD": "criteo-kaggle",
    "GPU": "h100-sxm",
    "NODE": "dgx-a100-80gb",
    "TRACE": str(ROOT / "traces" / "cpu_dlrm_2rank"),
    "MODEL": "model.py:Net",
    "SPEC": "spec.toml",
    "BEFORE": "before.json",
    "AFTER": "after.json",
}
IN_PYTHON = ("torch", "torchrec")
_ROW = re.compile(r"^\| (.+?) \| `perfmodel (.+?)` \| `?(.+?)`? \|$", re.M)


def questions(page: str) -> dict[str, tuple[list[str], str]]:
    """The table of the page: a question to its command and where the answer stands."""
    return {asked: (shlex.split(command), place) for asked, command, place in _ROW.findall(page)}


def at(answer: Any, place: str) -> Any:
    for word in place.split("."):
        answer = answer[int(word)] if word.isdigit() else answer[word]
    return answer


def asked_on_the_start_page() -> Iterator[str]:
    """First cells of its tables of questions, but for those that Python alone answers."""
    for line in (ROOT / "docs" / "index.md").read_text().splitlines():
        question, _, page = line.partition(" | ")
        if (
            question.endswith("?")
            and page
            and not any(f"({name}.md)" in page for name in IN_PYTHON)
        ):
            yield question.removeprefix("| ")


PAGE = (ROOT / "perfmodel" / "AGENTS.md").read_text()
TABLE = questions(PAGE)
OF_MODELS = [question for question, (command, _) in TABLE.items() if "MODEL" in command]


def test_the_page_is_printed_and_has_every_question_of_the_start_page(run: Run) -> None:
    assert run("skill").out == PAGE == (ROOT / "docs" / "agents.md").read_text()
    assert set(asked_on_the_start_page()) <= set(TABLE)
    assert len(TABLE) >= 20
    assert all(f"`perfmodel.{name}`" in PAGE for name in IN_PYTHON)


@pytest.mark.parametrize("question", slow_but(4, [each for each in TABLE if each not in OF_MODELS]))
def test_a_script_answers(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, question: str
) -> None:
    answered(run, tmp_path, monkeypatch, question)


@pytest.mark.slow
@pytest.mark.parametrize("question", OF_MODELS)
def test_a_script_answers_of_a_module(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, question: str
) -> None:
    pytest.importorskip("torch", reason="needs PyTorch: the CPU build is enough")
    (tmp_path / "model.py").write_text(NET)
    answered(run, tmp_path, monkeypatch, question)


def answered(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, question: str) -> None:
    command, place = TABLE[question]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.toml").write_text(SPEC)
    write(tmp_path / "before.json", document())
    write(tmp_path / "after.json", document())
    ran = run(*(WORDS.get(word, word) for word in command))
    assert ran.status == 0, ran.err
    if "." in place and not place.startswith(("answer", "causes", "source", "straggler")):
        assert (tmp_path / place).stat().st_size > 1000
        return
    answer = json.loads(ran.out)
    assert at(answer, place) not in (None, "", [])
    if "brief" in command:
        assert len(ran.out) <= 2000


def test_what_it_answers_is_what_the_whole_answer_says(run: Run) -> None:
    trace = WORDS["TRACE"]
    brief = json.loads(run("predict", trace, "--format", "brief").out)
    whole = json.loads(run("predict", trace, "--format", "json").out)["results"][0]
    (told,) = brief["answer"]
    assert told["step_us"] == pytest.approx(whole["step_us"], rel=1e-5)
    assert told["interval"] == pytest.approx([whole["low_us"], whole["high_us"]], rel=1e-5)
    largest = brief["causes"][0]
    path = whole["critical_path"]
    named = [each for each in path if f"{each['kind']}: {each['name']}" == largest["name"]]
    assert largest["duration_us"] == pytest.approx(sum(each["duration_us"] for each in named), 1e-4)
    assert run(*shlex.split(brief["next"])[1:]).status == 0


@pytest.mark.slow
def test_the_next_command_of_a_breakdown_gains_most(run: Run) -> None:
    ran = run("breakdown", WORDS["TRACE"], "-f", "brief")
    nearest = json.loads(run("breakdown", WORDS["TRACE"], "-fjson").out)["gains"][0]
    command = json.loads(ran.out)["next"]
    assert command == nearest["command"]
    gained = json.loads(run(*shlex.split(command)[1:], "--format", "brief").out)["answer"][0]
    assert gained["gain_us"] == pytest.approx(nearest["gain_us"], rel=0.05)
