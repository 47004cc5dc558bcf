"""`perfmodel diff`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from cli.conftest import Run
from cli.samples import check_schema, document, write

from perfmodel import __version__, api
from perfmodel.cli.compare import _changes
from perfmodel.reporting.tables import Table


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


def test_a_small_growth_has_its_sign_and_kernels_say_what_they_do(
    pair: tuple[Path, Path],
) -> None:
    """`0.9 %` used to lack its sign, and two kernels were both `elementwise_kernel`."""
    kinds = ("direct_copy_kernel_cuda", "where_kernel_impl")
    rows = [("on the path", f"void at::elementwise_kernel<at::{each}>()", 100.0) for each in kinds]
    changes = pd.DataFrame(rows, columns=["group", "name", "a_us"]).assign(b_us=100.9)
    changes["change_us"] = changes.b_us - changes.a_us
    *_, table = _changes(replace(api.diff(*pair), changes=changes), 2)
    assert isinstance(table, Table)
    names = [f"elementwise_kernel[{each}]" for each in kinds]
    assert [(name, share) for name, *_, share in table.rows()] == [(n, "+0.9 %") for n in names]


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


def test_answers_of_two_versions_of_the_tool(run: Run, tmp_path: Path) -> None:
    path, answer = _stored(run, tmp_path, "new.json", "predict")
    assert answer["made_by"]["perfmodel"] == __version__
    same = json.loads(run("diff", path, path, "--format", "json").out)
    check_schema("diff", same)
    assert same["notes"] == []
    assert same["changes"]
    old = tmp_path / "old.json"
    old.write_text(json.dumps(answer | {"made_by": answer["made_by"] | {"perfmodel": "0.0.9"}}))
    (note,) = json.loads(run("diff", old, path, "--format", "json").out)["notes"]
    assert note == f"two versions of the tool made them: perfmodel 0.0.9 to {__version__}"


@pytest.mark.parametrize("schema", ["prediction/3", "breakdown/0", "brief/1", "other/1"])
def test_answers_of_other_schemas_are_one_line(run: Run, tmp_path: Path, schema: str) -> None:
    path = tmp_path / "later.json"
    later = {"schema": f"perfmodel.{schema}", "made_by": {"perfmodel": "7.1"}, "results": []}
    path.write_text(json.dumps(later))
    ran = run("diff", path, path)
    assert (ran.status, ran.err.count("\n")) == (2, 1)
    assert f"perfmodel.{schema}: perfmodel {__version__} reads " in ran.err
    assert "perfmodel" in ran.err


@pytest.mark.parametrize("value", [None, 3, [{}], {"perfmodel": 5}])
def test_damaged_stored_answers_are_one_line(run: Run, tmp_path: Path, value: object) -> None:
    path = tmp_path / "damaged.json"
    path.write_text(json.dumps({"schema": "perfmodel.prediction/1", "made_by": value}))
    ran = run("diff", path, path)
    assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "damaged.json: not a sound perfmodel.prediction/1" in ran.err
