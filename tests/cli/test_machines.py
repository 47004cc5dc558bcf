"""`predict` on all machines of the catalogue, and what each costs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli.conftest import Run
from cli.test_predict import GPUS, answer_of

from perfmodel.errors import UsageError
from perfmodel.hardware import load
from perfmodel.prediction import predict
from perfmodel.prediction.request import machines
from perfmodel.prediction.running_cost import cheapest_first
from perfmodel.reporting.predicted import prediction_blocks
from perfmodel.reporting.tables import Table
from perfmodel.workload import load_workload


def test_machines_of_the_catalogue_are_those_with_gpus() -> None:
    """By kind, each once, and those that are named beside them."""
    nodes = machines(["nodes", "t4"])
    assert {"dgx-h100", "hgx-mi300x", "t4"} < set(nodes)
    assert {"h100-sxm", "hotline-cpus", "nodes"}.isdisjoint(nodes)
    assert machines(["t4"]) == []
    assert set(machines(["gpus"])) == {each.name for each in GPUS}


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalogue of four: p5en has no price, a trace of two ranks is too much for one T4."""
    names = ["p5en", "dgx-1", "t4", "dgx-a100-80gb"]
    every = {"nodes": names, "all": names}
    found = lambda named: every.get(next(iter(named), ""), [])  # noqa: E731
    for where in ("prediction.request", "prediction.run"):
        monkeypatch.setattr(f"perfmodel.{where}.machines", found)


@pytest.mark.usefixtures("few")
def test_the_cheapest_comes_first_and_who_cannot_be_told_from_it_is_named() -> None:
    """Money per sample is that of an hour over the samples in it."""
    workload = load_workload("criteo-kaggle")
    names = ["p5en", "dgx-1", "no-such-node", "dgx-a100-80gb"]
    found = cheapest_first(names, lambda name: predict(workload, hardware=name))
    costs = [each.cost for each in found.results if each.cost]
    names = [each.hardware for each in found.results]
    assert names[-1] == "p5en"
    usd = [each["usd_per_million"] for each in costs]
    assert usd[0] < usd[1]
    assert usd[2] is None
    best, other, unpriced = costs
    assert best["over_best"] == pytest.approx(1.0)
    assert best["over_best_interval"] is None
    assert other["over_best"] == pytest.approx(usd[1] / usd[0])
    low, high = other["over_best_interval"]
    assert low < other["over_best"] < high
    assert (unpriced["over_best"], unpriced["over_best_interval"]) == (None, None)
    assert any("left out no-such-node" in line for line in found.warnings)
    blocks = list(map(str, prediction_blocks(found)))
    assert any(
        text.startswith(f"Within the 90 % interval of the best, {names[0]}") for text in blocks
    )


@pytest.mark.usefixtures("few")
def test_python_knows_the_groups_as_well() -> None:
    """Settings of the workload and a batch hold on each machine."""
    asked = {"workload.table.alpha": 0.8}
    found = predict("criteo-kaggle", hardware="nodes", settings=asked, batch=4096)
    assert {each.hardware for each in found.results} == {"p5en", "dgx-1", "t4", "dgx-a100-80gb"}
    alone = predict("criteo-kaggle", hardware="dgx-1", settings=asked, batch=4096)
    assert alone.results[0].step_us in [each.step_us for each in found.results]


def test_a_board_among_all_is_the_board_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """On its usual host; a setting puts all on one, where boards of one chip are alike."""
    names = ["mi350x", "mi355x", "hgx-mi350x"]
    found = lambda named: names if named == ["gpus"] else []  # noqa: E731
    monkeypatch.setattr("perfmodel.prediction.run.machines", found)

    def steps_us(hardware: Any, *settings: str) -> dict[str, float]:
        answer = predict("criteo-kaggle", hardware=hardware, settings=settings)
        return {each.hardware.partition(" ")[0]: each.step_us for each in answer.results}

    together = steps_us("gpus")
    assert together == {name: steps_us(name)[name] for name in names}
    assert together["mi355x"] > 1.2 * together["mi350x"]
    on_one = steps_us("gpus", "node.host=generic-server")
    assert on_one["mi350x"] == pytest.approx(on_one["mi355x"], rel=0.02)


def test_what_several_boards_stand_on_is_said() -> None:
    """Unless a setting has put them on one host."""
    names, sold = ["h100-sxm", "v100-sxm2-16gb"], "the host that it is sold with"
    blocks = [*prediction_blocks(predict("criteo-kaggle", hardware=names))]
    assert any(sold in str(each) for each in blocks)
    on_one = predict("criteo-kaggle", hardware=names, settings=["node.host=generic-server"])
    assert not any(sold in str(each) for each in prediction_blocks(on_one))
    (summary,) = (each for each in blocks if isinstance(each, Table) and each.title[:4] == "Cost")
    assert summary.title == "Cost per billion samples, and time per batch (ms)"


def test_what_cannot_run_anywhere_is_named_once() -> None:
    refused = {"t4": "no units", "p4": "no units", "l4": ""}

    def on(name: str) -> Any:
        if refused[name]:
            raise UsageError(f"{name}: {refused[name]}")
        return predict("criteo-kaggle", hardware=name)

    found = cheapest_first([*refused], on)
    assert found.warnings[0] == "left out t4, p4: no units"


def test_boards_whose_memory_is_too_small_are_one_line() -> None:
    """Each used to have a line of its own, of which no two were the same."""
    large = load_workload("dlrm-dcnv2")
    names = ["t4", "mi355x", "l4"]
    found = cheapest_first(names, lambda name: predict(large, hardware=name))
    (line,) = (each for each in found.warnings if each.startswith("left out"))
    assert line.startswith("left out t4, l4: their memory is too small")


def test_whose_price_is_missing_is_said() -> None:
    """The T4 has a price; the host that it is thought to sit in has none."""
    asked = predict("criteo-kaggle", hardware="t4")
    assert asked.results[0].cost is not None
    assert asked.results[0].cost["unpriced"] == ["host generic-server"]
    assert any(
        "no price of host generic-server, " in str(each) for each in prediction_blocks(asked)
    )
    several = predict("criteo-kaggle", hardware=["t4", "l4", "b300", "h100-sxm"])
    lines = [str(each) for each in prediction_blocks(several)]
    missing = "host generic-server (2), device (1), nic connectx-8 (1)"
    hint = "--set host.price_usd=USD"
    assert f"No cost of 3, for want of prices: {missing}; {hint}" in lines
    priced = predict("criteo-kaggle", hardware="t4", settings=["host.price_usd=2000"])
    assert priced.results[0].cost is not None
    assert priced.results[0].cost["unpriced"] == []


def test_a_setting_of_all_machines_stands_once() -> None:
    """It used to be in each name, which left no room for the costs."""
    asked = predict("criteo-kaggle", hardware=["t4", "l4"], settings=["host.price_usd=2000"])
    title, verdict, summary, *lines = prediction_blocks(asked)
    assert isinstance(summary, Table)
    assert [row[0] for row in summary.rows()] == ["t4", "l4"]
    assert "All with host.price_usd=2000" in lines
    assert "price_usd" not in f"{title}{verdict}"


def test_five_machines_have_parts_beside_others() -> None:
    """The fifth used to have tables of its own, without its name."""
    names = ["t4", "l4", "a10", "a30", "a40"]
    blocks = [*prediction_blocks(predict("criteo-kaggle", hardware=names))]
    tables = [each for each in blocks if isinstance(each, Table) and each.title[:8] == "Critical"]
    assert [[c.head for c in each.columns[1:]] for each in tables] == [names[:3], names[3:]]


@pytest.mark.slow
@pytest.mark.usefixtures("few")
def test_each_of_several_machines_is_served_as_it_is_alone(run: Run) -> None:
    """Sorted by cost; one that misses the latency is left out, and ends nothing."""
    asked = ("--workload", "criteo-kaggle", "--inference", "--max-delay-ms", "5", "--rate", "1e5")

    def served(hardware: str, p99_ms: str) -> dict[str, Any]:
        return answer_of(run, *asked, "--p99-ms", p99_ms, "--hardware", hardware)

    together = served("nodes", "12")
    assert len(together["source"]["serving"]) == len(together["results"]) == 4
    for row in together["source"]["serving"]:
        assert served(row["hardware"], "12")["source"]["serving"] == [row]
    p99_us = sorted(row["p99_us"] for row in together["source"]["serving"])
    missed = served("nodes", str((p99_us[2] + p99_us[3]) / 2e3))
    assert len(missed["source"]["serving"]) == 3
    assert any("not 99 % within" in line for line in missed["warnings"])


def test_a_name_beside_a_group_must_be_known(run: Run) -> None:
    ran = run("predict", "--workload", "criteo-kaggle", "--hardware", "gpus", "--hardware", "nope")
    assert ran.status == 2
    assert "unknown hardware 'nope'" in ran.err


@pytest.mark.usefixtures("few")
def test_a_machine_that_cannot_run_a_trace_is_left_out(run: Run) -> None:
    answer = answer_of(run, "demo:2rank", "--hardware", "all")
    assert len(answer["results"]) == 3
    (left_out,) = (line for line in answer["warnings"] if line.startswith("left out"))
    assert left_out.startswith("left out t4: ")
    assert "2 ranks need a network adapter" in left_out
    assert {each["cost"]["copies"] for each in answer["results"]} == {4}


@pytest.mark.parametrize(
    ("trace", "copies"),
    [("execution_graphs/alexnet_et_2023", 8), ("traces/dlrm_v100x8/kineto_rank0", 1)],
)
def test_a_node_of_eight_runs_copies_of_the_whole_job(
    reference: Path, trace: str, copies: int
) -> None:
    """An execution trace of one rank, and one rank of a job of eight."""
    (result,) = predict(reference / f"{trace}.json.gz", hardware="dgx-h100").results
    assert result.cost is not None
    assert (result.cost["per"], result.cost["copies"]) == ("batches", copies)
    assert result.cost["rate_per_s"] == pytest.approx(copies * 1e6 / result.step_us)


def test_what_stands_in_brackets_of_a_name_is_no_setting() -> None:
    mine = replace(load("h100-sxm"), name="mine (test)")
    lines = [*prediction_blocks(predict("criteo-kaggle", hardware=[mine, "l4"]))]
    assert not any(str(each).startswith("All with") for each in lines)
    (table,) = [each for each in lines if isinstance(each, Table) and each.title.startswith("Cost")]
    assert {row[0] for row in table.rows()} == {"mine (test)", "l4"}
