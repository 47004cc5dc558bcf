"""Errors of Python's functions name their arguments; on the command line, its options."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import perfmodel
from perfmodel import PerfmodelError, errors
from perfmodel.cli import main
from perfmodel.cost.learned.store import load_models
from perfmodel.ops.read.module import Call
from perfmodel.prediction.what_if import Codec

ROOT = Path(__file__).parents[1]
TRACE, WORKLOAD, MACHINE = ROOT / "traces" / "cpu_dlrm_2rank", "criteo-terabyte", "dgx-a100-80gb"
TABLE = ROOT / "traces" / "cpu_kernels" / "cpu_epyc.csv"
BASELINE = ROOT / "traces" / "baseline.json"
OPTION = re.compile(r"(?<![\w`-])--[a-z]")

CALLS: list[tuple[Callable[[], object], str]] = [
    (lambda: perfmodel.predict(TRACE, scale={"gpu": "x"}), "scale 'gpu=x': expected"),
    (lambda: perfmodel.predict(TRACE, scale="disk:x=2"), "scale 'disk:x=2': unknown scope"),
    (lambda: perfmodel.predict(TRACE, remove="disk"), "remove 'disk': unknown scope"),
    (lambda: perfmodel.predict(TRACE, codec="x=house"), "codec 'x=house': expected"),
    (lambda: perfmodel.predict(TRACE, edit="house=1"), "edit 'house=1': unknown edit"),
    (lambda: perfmodel.predict(TRACE, mode="transfer"), "mode transfer needs hardware"),
    (
        lambda: perfmodel.predict(TRACE, mode="replay", hardware="t4"),
        "hardware cannot be combined",
    ),
    (
        lambda: perfmodel.predict(TRACE, mode="model", scale="gpu=2", hardware="t4"),
        "scale cannot be combined with mode model",
    ),
    (
        lambda: perfmodel.predict(TRACE, leave_one_step_out=True, hardware="t4"),
        "leave_one_step_out cannot be combined",
    ),
    (lambda: perfmodel.predict(TRACE, train=False), "train cannot be combined with a trace"),
    (lambda: perfmodel.predict(WORKLOAD), "say on which hardware"),
    (lambda: perfmodel.read(TRACE, steps=slice(90, 99)), "steps matches none of the 6 steps"),
    (lambda: perfmodel.compare(WORKLOAD, MACHINE, []), "designs: name one or more"),
    (lambda: perfmodel.compare(WORKLOAD, MACHINE, ["neo"] * 2), "designs: neo comes twice"),
    (
        lambda: perfmodel.compare(WORKLOAD, MACHINE, "default+cpu_only"),
        "designs 'default+cpu_only': ",
    ),
    (
        lambda: perfmodel.compare(WORKLOAD, MACHINE, "neo", settings={"node.house": 1}),
        "settings: unknown key house of a node",
    ),
    (lambda: perfmodel.compare(WORKLOAD, MACHINE, "neo", settings="neo"), "settings 'neo': exp"),
    (lambda: perfmodel.check(BASELINE, tolerance_frac=-1), "tolerance_frac -1: expected a share"),
    (lambda: perfmodel.fit("kernels", TABLE, "no", estimator="x"), "estimator x: expected MODULE"),
    (lambda: perfmodel.fit("collectives", TABLE, "no"), "name the machine of the logs with hard"),
    (lambda: perfmodel.fit("collectives", [], "no", hardware="dgx-h100"), "one or more logs"),
]


@pytest.mark.parametrize(("call", "said"), CALLS)
def test_an_error_names_the_argument(
    call: Callable[[], object], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PerfmodelError) as caught:
        call()
    message = str(caught.value)
    assert said in message
    assert "\n" not in message
    assert not OPTION.search(re.sub("`[^`]*`", "", message))


def test_the_same_error_names_the_option_to_who_typed_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["predict", str(TRACE), "--scale", "gpu=x"]) == 2
    assert capsys.readouterr().err.startswith("perfmodel: --scale 'gpu=x': expected")
    with pytest.raises(PerfmodelError, match=r"^codec 'x=house'"):
        Codec.parse("x=house")


def test_commands_stay_and_options_of_other_names_are_those_of_functions() -> None:
    error = PerfmodelError("--p99-ms 3, --leave-one-step-out; a--b (`perfmodel check --update`)")
    assert str(error) == "p99_ms 3, leave_one_step_out; a--b (`perfmodel check --update`)"
    assert error.args[0].startswith("--p99-ms 3")


def options_in_errors() -> Iterator[tuple[str, str]]:
    """(place, argument) of every option that the library's errors name."""
    for path in sorted((ROOT / "perfmodel").rglob("*.py")):
        if {"cli", "collect"} & set(path.parts):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Raise) and node.exc is not None:
                for part in ast.walk(node.exc):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        for option in errors._OPTION.finditer(part.value):
                            if option[1]:
                                yield f"{path.name}:{part.lineno}", errors._as_argument(option)


def test_every_option_in_an_error_is_an_argument_of_a_function() -> None:
    functions = [getattr(perfmodel, name) for name in perfmodel.__all__ if name.islower()]
    functions += [Call, load_models]
    known = {
        name
        for function in functions
        if inspect.isfunction(function)
        for name in inspect.signature(function).parameters
    }
    known |= {"only", "estimator", "collective", "ranks", "curves"}  # of `fit`
    known |= {"explain", "largest_batch"}  # what a function itself is called
    found = list(options_in_errors())
    assert len(found) > 30
    wrong = [each for each in found if each[1].partition("=")[0] not in known]
    assert not wrong
