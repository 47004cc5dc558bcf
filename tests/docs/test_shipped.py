"""What the repository offers to others: the action, the hooks of pre-commit, menu and reference."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli.samples import document, write
from docs.pages import ROOT

from perfmodel.cli import GROUPS, VERBS, main

MAX_ENTRIES, MAX_PAGES = 8, 35


def action_step(name: str) -> dict[str, Any]:
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    (step,) = (each for each in action["runs"]["steps"] if each.get("name") == name)
    found: dict[str, Any] = step
    return found


def run_step(name: str, folder: Path, **values: object) -> int:
    """A step's script under bash as a runner calls it, with a `perfmodel` and a `gh` beside it."""
    environment = {
        **os.environ,
        "RUNNER_TEMP": str(folder),
        "GITHUB_OUTPUT": str(folder / "output"),
        "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
        "PATH": f"{folder}:{os.environ['PATH']}",
        **{key: str(value) for key, value in values.items()},
    }
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", action_step(name)["run"]]
    return subprocess.run(command, env=environment, cwd=folder, check=False).returncode


def script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.mark.slow
def test_the_action_checks_and_comments(tmp_path: Path) -> None:
    perfmodel = f'#!/bin/sh\nexec "{sys.executable}" -P -m perfmodel "$@"\n'
    script(tmp_path / "perfmodel" / "bin" / "perfmodel", perfmodel)
    script(tmp_path / "gh", '#!/bin/sh\necho "$@" >> calls\n')
    trace, baseline = write(tmp_path / "t.json", document()), tmp_path / "base line.json"
    assert main(["check", "--baseline", str(baseline), "--update", str(trace)]) == 0
    values = {"TRACES": trace, "BASELINE": baseline, "TOLERANCE": "0.05"}
    assert set(action_step("Check")["env"]) == set(values)
    assert run_step("Check", tmp_path, **values) == 0
    held = json.loads(baseline.read_text())
    for row in held["rows"]:
        row.update({key: row[key] / 2 for key in row if key.endswith("_pct")})
    baseline.write_text(json.dumps(held))
    assert run_step("Check", tmp_path, **values) == 1
    summary = (tmp_path / "summary.md").read_text()
    assert "perfmodel check: passed" in summary
    assert "perfmodel check: failed" in summary
    report = (tmp_path / "output").read_text().splitlines()[-1].removeprefix("report=")
    said = {"REPORT": report, "NUMBER": 7, "REPOSITORY": "o/r", "GH_TOKEN": "x"}
    assert set(action_step("Comment")["env"]) == set(said)
    assert run_step("Comment", tmp_path, **said) == 0
    asked, written = (tmp_path / "calls").read_text().splitlines()
    assert "repos/o/r/issues/7/comments" in asked
    assert written.startswith("api --method POST repos/o/r/issues/7/comments -F body=@")
    assert (tmp_path / "perfmodel-comment.md").read_text().startswith("<!-- perfmodel check -->")


@pytest.mark.slow
def test_the_action_compares_two_traces(tmp_path: Path) -> None:
    perfmodel = f'#!/bin/sh\nexec "{sys.executable}" -P -m perfmodel "$@"\n'
    script(tmp_path / "perfmodel" / "bin" / "perfmodel", perfmodel)
    script(tmp_path / "gh", '#!/bin/sh\necho "$@" >> calls\n')
    slower, trace = tmp_path / "slower.json", write(tmp_path / "t.json", document())
    for scale, path in (("1", tmp_path / "plain.json"), ("3", slower)):
        assert main(["predict", str(trace), "--scale", f"host={scale}", "-o", str(path)]) == 0
    values = {"BEFORE": tmp_path / "plain.json", "AFTER": slower, "FAIL_OVER": "step=5%"}
    assert set(action_step("Diff")["env"]) == set(values)
    assert run_step("Diff", tmp_path, **values) == 1
    assert run_step("Diff", tmp_path, **values | {"AFTER": values["BEFORE"]}) == 0
    slow, same = re.findall(r"^\*\*.*", (tmp_path / "summary.md").read_text(), re.MULTILINE)
    assert " slower: step " in slow
    assert same.startswith("**no change: step ")
    report = (tmp_path / "output").read_text().splitlines()[-1].removeprefix("report=")
    said = {"REPORT": report, "NUMBER": 7, "REPOSITORY": "o/r", "GH_TOKEN": "x"}
    assert run_step("Comment", tmp_path, **said) == 0
    assert (tmp_path / "perfmodel-comment.md").read_text().startswith("<!-- perfmodel diff -->")


def test_the_hooks_are_commands() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert {hook["id"] for hook in hooks} == {
        *("perfmodel-check", "perfmodel-diff", "perfmodel-hardware"),
    }
    for hook in hooks:
        assert hook["language"] == "python"
        program, *words = hook["entry"].split()
        assert program == "perfmodel"
        assert main([*words, "--help"]) == 0


def entries(menu: list[Any]) -> list[list[Any]]:
    """Every level of a menu."""
    below = [next(iter(each.values())) for each in menu]
    return [menu, *(level for each in below if isinstance(each, list) for level in entries(each))]


def test_the_menu_is_short_and_its_pages_exist() -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    levels = entries(yaml.safe_load(text)["nav"])
    assert max(map(len, levels)) <= MAX_ENTRIES
    pages = set(re.findall(r": ([\w/-]+\.md)$", text, re.MULTILINE))
    assert len(pages) <= MAX_PAGES
    outside = {"coefficients.md", "gpu-queue.md", "hand-calculations.md", "releasing.md"}
    outside |= {"evidence/robustness.md"}
    for path in sorted((ROOT / "docs").rglob("*.md")):
        name = str(path.relative_to(ROOT / "docs"))
        is_internal = name in outside or name.startswith("decisions/")
        assert (name in pages) != is_internal, name


def test_the_reference_names_every_verb_and_schema() -> None:
    text = (ROOT / "docs" / "reference.md").read_text()
    verbs = [*VERBS, *GROUPS]
    for verb in verbs:
        assert f"| `{verb}` |" in text
    for schema in (ROOT / "docs" / "schemas").glob("*.json"):
        assert f"(schemas/{schema.name})" in text, schema.name


def test_notebooks_are_numbered_without_holes() -> None:
    for number, path in enumerate(sorted((ROOT / "notebooks").glob("*.ipynb")), start=1):
        assert path.name.startswith(f"{number:02d}_")
        first = "".join(json.loads(path.read_text())["cells"][0]["source"])
        assert "?" in first, f"{path.name} begins with no question"
