"""Help is there and has examples."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest
import typer.main
from cli.conftest import Run
from cli.samples import ROOT

from perfmodel.cli import GROUPS, application
from perfmodel.cli import VERBS as COMMANDS
from perfmodel.cli.prediction_options import PredictionOptions

VERBS = ("predict", "breakdown", "diff", "kernel", "export", "hardware", "evaluate", "check")


@pytest.mark.parametrize("verb", VERBS)
def test_help_has_an_example(run: Run, verb: str) -> None:
    ran = run(verb, "--help")
    assert ran.status == 0
    assert "Examples:" in ran.out
    assert f"perfmodel {verb} " in ran.out.partition("Examples:")[2]


def examples(help_of: dict[str, Any]) -> Iterator[list[str]]:
    """The words after `perfmodel` of each example in `options.toml`."""
    for name, value in help_of.items():
        if isinstance(value, dict):
            yield from examples(value)
        elif name == "help":
            lines = value.replace("\\\n", " ").splitlines()
            yield from (line.split()[1:] for line in lines if line.startswith("  perfmodel "))


def test_examples_have_options_that_there_are() -> None:
    texts = tomllib.loads((ROOT / "perfmodel" / "cli" / "options.toml").read_text())
    every, checked = typer.main.get_command(application("no such verb")), 0
    for words in examples(texts):
        command: Any = every
        while words and words[0] in getattr(command, "commands", ()):
            command = command.commands[words.pop(0)]
        known = {option for each in command.params for option in each.opts} | {"--help"}
        asked = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert asked <= known, words
        checked += len(asked)
    assert checked > 100


def test_every_verb_is_in_the_overview(run: Run) -> None:
    ran = run("--help")
    assert ran.status == 0
    assert all(f"\n  {verb} " in ran.out for verb in VERBS)


@pytest.mark.parametrize("verb", ["predict", "report", "export"])
def test_what_is_predicted_is_said_with_the_same_options(run: Run, verb: str) -> None:
    other = {"settings": "set", "source_device": "source"}
    names = [field.name for field in fields(PredictionOptions)]
    options = [other.get(name, name).replace("_", "-") for name in names]
    shown = run(verb, "--help").out
    assert len(options) > 12
    for name in options:
        assert f"--{name} " in shown


@pytest.mark.parametrize(("group", "least"), [((), len(VERBS)), (("evaluate",), 7), (("fit",), 4)])
def test_no_line_of_the_overview_is_cut(
    run: Run, monkeypatch: pytest.MonkeyPatch, group: tuple[str, ...], least: int
) -> None:
    """Nor of the nouns of a verb."""
    monkeypatch.setenv("COLUMNS", "80")
    commands = run(*group, "--help").out.partition("Commands:")[2].strip().splitlines()
    assert len(commands) >= least
    assert all(line.endswith(".") and "..." not in line for line in commands)


def test_without_arguments_help_goes_to_standard_error(run: Run) -> None:
    ran = run()
    assert (ran.status, ran.out) == (2, "")
    assert "Commands:" in ran.err


def test_the_overview_names_the_exit_codes(run: Run) -> None:
    assert "Exit codes: 0 answered, 1 a check said no, 2 wrong input, 130" in run("--help").out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "found"), [("perfmodel bre", "breakdown"), ("perfmodel predict --har", "--hardware")]
)
def test_a_shell_is_told_which_words_follow(words: str, found: str) -> None:
    asked = {"_PERFMODEL_COMPLETE": "complete_bash", "COMP_WORDS": words}
    asked["COMP_CWORD"] = str(words.count(" "))
    command = [sys.executable, "-m", "perfmodel"]
    done = subprocess.run(command, env=os.environ | asked, capture_output=True, text=True)
    assert (done.stdout.split(), done.stderr) == ([found], "")


def test_version(run: Run) -> None:
    assert run("--version").out.startswith("perfmodel ")


def test_only_the_verb_that_is_asked_for_is_there() -> None:
    assert {each.callback.__name__ for each in application("diff").registered_commands} == {"diff"}
    every = application("no such verb")
    assert {each.callback.__name__ for each in every.registered_commands} == set(COMMANDS)
    assert {each.name for each in every.registered_groups} == set(GROUPS)
