"""`perfmodel diff`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli.conftest import Run
from cli.samples import check_schema, document, write

from perfmodel import __version__


def _slower(content: dict[str, Any], by_us: float) -> dict[str, Any]:
    """The same trace with its collectives `by_us` longer."""
    for event in content["traceEvents"]:
        if event["name"].startswith("nccl"):
            event["dur"] += by_us
    return content


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    before, after = document(), _slower(document(), 3)
    return write(tmp_path / "before.json", before), write(tmp_path / "after.json", after)


def test_a_longer_kernel_is_named(run: Run, pair: tuple[Path, Path]) -> None:
    answer = json.loads(run("diff", *pair, "--format", "json").out)
    check_schema("diff", answer)
    changes = {(row["group"], row["name"]): row["change_us"] for row in answer["changes"]}
    assert changes["device", "communication"] == 3
    assert changes["device", "matmul"] == 0
    assert changes["step", "comm"] == 3


def test_a_trace_against_itself_does_not_differ(run: Run, pair: tuple[Path, Path]) -> None:
    answer = json.loads(run("diff", pair[0], pair[0], "--format", "json").out)
    assert {row["change_us"] for row in answer["changes"]} == {0.0}


def test_a_saved_prediction_is_a_side(run: Run, pair: tuple[Path, Path], tmp_path: Path) -> None:
    saved = tmp_path / "saved.json"
    assert run("predict", pair[0], "--scale", "comm=2", "-o", saved).status == 0
    ran = run("diff", pair[0], saved, "--top", 3)
    assert ran.status == 0
    assert "Device time by family" in ran.out
    assert "+100.0 %" in ran.out


def test_a_damaged_prediction_is_one_line(
    run: Run, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text('{"schema": "perfmodel.prediction/1", "results": []}')
    ran = run("diff", pair[0], broken)
    assert (ran.status, ran.out) == (2, "")
    assert "broken.json: not a sound perfmodel.prediction/1" in ran.err


@pytest.mark.parametrize("key", ["step_us", "comm_us", "critical_path", "families", "hardware"])
@pytest.mark.parametrize("value", [None, 3, float("nan"), True, [{}]])
def test_a_prediction_with_a_damaged_figure_is_one_line(
    run: Run, pair: tuple[Path, Path], tmp_path: Path, key: str, value: object
) -> None:
    if key.endswith("_us") and value == 3:
        value = "3"
    saved = tmp_path / "saved.json"
    run("predict", pair[0], "-o", saved)
    answer = json.loads(saved.read_text())
    answer["results"][0][key] = value
    saved.write_text(json.dumps(answer))
    ran = run("diff", pair[0], saved)
    assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "saved.json: not a sound perfmodel.prediction/1" in ran.err


def _stored(run: Run, tmp_path: Path, name: str, *words: object) -> tuple[Path, dict[str, Any]]:
    path = tmp_path / name
    assert run(*words, "-o", path).status == 0
    return path, json.loads(path.read_text())


def _remark(run: Run, a: Path, b: Path) -> Any:
    return json.loads(run("diff", a, b, "--format", "json").out)["remark"]


VERBS: dict[str, tuple[str, ...]] = {
    "prediction": ("predict",),
    "breakdown": ("breakdown",),
    "compare": (
        *("compare", "--workload", "criteo-kaggle", "--hardware", "dgx-a100-40gb"),
        *("--designs", "cpu_only"),
    ),
    "plan": (
        *("plan", "--workload", "criteo-kaggle", "--hardware", "dgx-a100-80gb"),
        *("--estimator", "torchrec"),
    ),
}


@pytest.mark.parametrize("kind", VERBS)
def test_answers_of_two_versions_of_the_tool(run: Run, tmp_path: Path, kind: str) -> None:
    path, answer = _stored(run, tmp_path, "new.json", *VERBS[kind])
    check_schema(kind, answer)
    assert answer["made_by"]["perfmodel"] == __version__
    assert len(answer["made_by"]["models"]) == len(answer["made_by"]["catalogue"]) == 12
    same = json.loads(run("diff", path, path, "--format", "json").out)
    check_schema("diff", same)
    assert (same["same_input"], same["tool_changed"]) == (True, [])
    assert same["remark"] == "same input as far as they say, same tool"
    assert same["changes"]
    old = tmp_path / "old.json"
    old.write_text(json.dumps(answer | {"made_by": answer["made_by"] | {"perfmodel": "0.0.9"}}))
    diff = json.loads(run("diff", old, path, "--format", "json").out)
    assert diff["tool_changed"] == ["perfmodel"]
    assert diff["remark"] == (
        "same input as far as they say: what differs is the tool's doing, or was asked otherwise "
        f"(perfmodel 0.0.9 to {__version__})"
    )
    del answer["made_by"]
    old.write_text(json.dumps(answer))
    ran = run("diff", old, path)
    assert ran.status == 0
    assert "old.json does not say what made it" in " ".join(ran.out.split())


def test_other_inputs_are_told_from_another_tool(
    run: Run, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    one, answer = _stored(run, tmp_path, "one.json", "predict", pair[0])
    other, _ = _stored(run, tmp_path, "other.json", "predict", pair[1])
    assert _remark(run, one, other) == "the inputs differ, same tool"
    one.write_text(json.dumps(answer | {"made_by": answer["made_by"] | {"models": "0" * 12}}))
    remark = _remark(run, one, other)
    assert remark.startswith("the inputs differ, and so does the tool (models 000000000000 to ")
    assert _remark(run, pair[0], pair[1]) is None


def test_a_what_if_is_not_taken_for_the_same_answer(run: Run, tmp_path: Path) -> None:
    """Answers do not say what was scaled: that they differ is said, and not put down to nothing."""
    plain, _ = _stored(run, tmp_path, "plain.json", "predict")
    scaled, _ = _stored(run, tmp_path, "scaled.json", "predict", "--scale", "host=0.5")
    said = "same input as far as they say, same tool: what differs was asked otherwise"
    assert _remark(run, plain, scaled) == said


@pytest.mark.parametrize("schema", ["prediction/2", "kernel/1"])
def test_answers_of_other_schemas_are_one_line(run: Run, tmp_path: Path, schema: str) -> None:
    path = tmp_path / "later.json"
    later = {"schema": f"perfmodel.{schema}", "made_by": {"perfmodel": "7.1"}, "results": []}
    path.write_text(json.dumps(later))
    ran = run("diff", path, path)
    assert (ran.status, ran.err.count("\n")) == (2, 1)
    assert f"perfmodel.{schema}, made by perfmodel 7.1: perfmodel {__version__}" in ran.err
    assert "make the answer anew with this version" in ran.err


def test_answers_of_two_verbs_have_nothing_in_common(
    run: Run, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    broken_down, _ = _stored(run, tmp_path, "breakdown.json", "breakdown", pair[0])
    ran = run("diff", broken_down, pair[0])
    assert (ran.status, ran.err.count("\n")) == (2, 1)
    assert "they have no figures in common" in ran.err


@pytest.mark.parametrize("kind", VERBS)
@pytest.mark.parametrize("value", [None, 3, [{}], {"perfmodel": 5}])
def test_damaged_stored_answers_are_one_line(
    run: Run, tmp_path: Path, kind: str, value: object
) -> None:
    path = tmp_path / "damaged.json"
    path.write_text(json.dumps({"schema": f"perfmodel.{kind}/1", "made_by": value}))
    ran = run("diff", path, path)
    assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert f"damaged.json: not a sound perfmodel.{kind}/1" in ran.err
