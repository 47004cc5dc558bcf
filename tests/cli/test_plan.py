"""`perfmodel plan`: its answer, its way into `predict`, and bad input."""

import json
from pathlib import Path

import pytest
from cli.conftest import Run
from cli.samples import check_schema

from perfmodel.cli import main

WORKLOAD = ("--workload", "criteo-kaggle")
PLAN, COMPARE = ("plan",), ("compare", "--designs", "default")
SMALL = (*WORKLOAD, "--hardware", "dgx-a100-80gb")


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("planned") / "plan.json"
    words = ("plan", *SMALL, "-o", str(path), "--torchrec", str(path.with_name("torchrec.json")))
    assert main(words) == 0
    return path


def test_json_is_what_the_schema_says(planned: Path) -> None:
    answer = json.loads(planned.read_text())
    check_schema("plan", answer)
    assert len(answer["tables"]) == 26
    assert answer["step_us"] == min(each["step_us"] for each in answer["tried"])


def test_a_quick_estimate_says_what_it_leaves_out(run: Run) -> None:
    """Beside steps that the host decides, it is a tenth of them."""
    out = " ".join(run("plan", *SMALL).out.split())
    assert "(quick estimate, without the host)" in out
    assert "quick estimate, tables by sharding step without the host" in out


def test_predict_takes_plans_of_both_kinds(run: Run, planned: Path) -> None:
    step_us = json.loads(planned.read_text())["step_us"]
    for path in (planned, planned.with_name("torchrec.json")):
        found = json.loads(run("predict", *SMALL, "--plan", str(path), "-f", "json").out)
        assert found["results"][0]["step_us"] == pytest.approx(step_us)


def test_a_device_alone_is_one_rank(run: Run) -> None:
    words = (*WORKLOAD, "--hardware", "a100-sxm-80gb", "-f", "json")
    planned, compared = (json.loads(run(*verb, *words).out) for verb in (PLAN, COMPARE))
    assert planned["ranks"] == compared["devices"] == 1
    assert planned["step_us"] <= compared["designs"][0]["step_us"] * (1 + 1e-9)


def test_a_table_of_every_embedding_table(run: Run) -> None:
    found = run("plan", *SMALL, "-f", "csv")
    assert len(found.out.strip().splitlines()) == 27


def test_a_plan_for_other_tables_or_hardware_is_refused(run: Run, planned: Path) -> None:
    other = ("--workload", "criteo-terabyte", "--hardware", "dgx-a100-80gb")
    found = run("predict", *other, "--plan", str(planned))
    assert found.status == 2
    assert "a plan for other tables" in found.err
    found = run("predict", *SMALL, "--nodes", "2", "--plan", str(planned))
    assert (found.status, found.out) == (2, "")
    assert f"{planned}: ranks 8, but" in found.err
    found = run("predict", "--plan", str(planned))
    assert found.status == 2
    assert "--plan" in found.err


def test_a_torchrec_plan_that_cannot_be_written_is_refused_before_the_search(
    run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "plan.json"
    found = run("plan", *SMALL, "--torchrec", str(path), "-o", str(path))
    assert found.status == 2
    assert "two outputs" in found.err
    found = run("plan", *SMALL, "--torchrec", str(tmp_path / "no" / "plan.json"))
    assert found.status == 2
    assert "there is no folder" in found.err
    assert not list(tmp_path.iterdir())
