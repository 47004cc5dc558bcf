"""`perfmodel compare`: designs side by side, what cannot be among them, and bad input."""

import json
from pathlib import Path
from typing import Any

import pytest
from cli.conftest import Run
from cli.samples import check_schema

from perfmodel import api
from perfmodel.designs import DESIGNS
from perfmodel.prediction.comparison import Comparison

SMALL = (
    *("--workload", "criteo-kaggle", "--hardware", "dgx-a100-80gb"),
    *("--set", "workload.implementation.name=torchrec"),
)
SERVED = (*SMALL, "--inference")
COMPARED: dict[str, Comparison] = {}
"""What was compared, by how it was asked for."""


@pytest.fixture(autouse=True)
def _compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test compared is not compared again for how another shows it."""
    compare = api.compare

    def once(*asked: Any, **more: Any) -> Comparison:
        key = repr((asked, more))
        if key not in COMPARED:
            COMPARED[key] = compare(*asked, **more)
        return COMPARED[key]

    monkeypatch.setattr(api, "compare", once)


def test_json_is_what_the_schema_says(run: Run) -> None:
    found = run("compare", *SMALL, "--designs", "cpu_only", "--rate", "1e5", "-f", "json")
    answer = json.loads(found.out)
    check_schema("compare", answer)
    default, hosts = answer["designs"]
    assert (default["design"], hosts["design"]) == ("default", "cpu_only")
    for row in (default, hosts):
        assert row["low_us"] <= row["step_us"] <= row["high_us"]
        assert row["samples_per_s"] == pytest.approx(answer["batch"] / row["step_us"] * 1e6)
        assert row["latency"]["p50_us"] < row["latency"]["p99_us"]
        assert sum(row["bound_by"].values()) == pytest.approx(row["step_us"])
    assert default["speed_up"] == 1
    assert hosts["hardware"] == "hosts of dgx-a100-80gb"
    assert [each["tier"] for each in hosts["memory"]] == ["dram"]


def test_what_cannot_be_is_a_row(run: Run) -> None:
    tables = ("--set", "workload.table.rows=1000000000")
    found = run("compare", *SMALL, *tables, "--designs", "cpu_only", "-f", "json")
    answer = json.loads(found.out)
    check_schema("compare", answer)
    default, hosts = answer["designs"]
    assert "of device memory" in default["why_not"]
    assert default["step_us"] is None
    assert hosts["feasible"]
    assert hosts["speed_up"] == 1


def test_where_nothing_can_be_the_answer_says_why_and_the_status_is_2(run: Run) -> None:
    tables = ("--set", "workload.table.rows=1000000000")
    found = run("compare", *SMALL, *tables, "--designs", "gpu_only")
    assert found.status == 2
    assert "gpu_only is not possible here: " in found.out
    assert run("compare", *SMALL, *tables, "--designs", "cpu_only").status == 0


@pytest.mark.slow
def test_speed_ups_are_over_the_fastest_baseline(run: Run) -> None:
    answer = json.loads(run("compare", *SMALL, "--designs", "cpu_only,neo", "-f", "json").out)
    check_schema("compare", answer)
    rows = {row["design"]: row for row in answer["designs"]}
    best = min(("default", "cpu_only"), key=lambda name: float(rows[name]["step_us"]))
    assert answer["baselines"] == [best]
    for row in rows.values():
        for name, speed_up in row["speed_ups"].items():
            assert speed_up == pytest.approx(rows[name]["step_us"] / row["step_us"])
            low, high = row["speed_up_intervals"][name]
            assert (low < speed_up < high) == (row["design"] != name)


def test_each_design_says_what_stops_it_and_what_would_help(run: Run) -> None:
    found = json.loads(run("compare", *SMALL, "--designs", "cpu_only,neo", "-f", "json").out)
    default, hosts, neo = found["designs"]
    assert default["bottleneck"]["resource"] == "host"
    assert "CUDA graphs" in default["bottleneck"]["lever"]
    assert 1 < default["bottleneck"]["lever_speed_up"] <= 2
    assert hosts["bottleneck"]["words"] == "CPU operators"
    assert hosts["bottleneck"]["lever_speed_up"] <= 2
    for row in (default, hosts, neo):
        why = row["bottleneck"]
        share = row["bound_by"][why["resource"]] / row["step_us"]
        assert why["share_frac"] == pytest.approx(share)


def test_a_combination_that_makes_no_sense_says_so(run: Run) -> None:
    designs = "software_cache+cpu_only,cpu_only+software_cache"
    found = run("compare", *SMALL, "--designs", designs, "-f", "json")
    _, undone, nowhere = json.loads(found.out)["designs"]
    assert "software_cache has no effect" in undone["why_not"]
    assert nowhere["why_not"].startswith("software_cache")


def test_settings_change_a_design(run: Run) -> None:
    def tables_bytes(*settings: str) -> float:
        chosen = [word for text in settings for word in ("--set", text)]
        found = run("compare", *SMALL, *chosen, "--designs", "cpu_only", "-f", "json")
        return float(json.loads(found.out)["designs"][1]["memory"][0]["tables_bytes"])

    assert tables_bytes("cpu_only.sockets=1") == 33_762_577 * 16 * 4
    assert tables_bytes() < 33_762_577 * 16 * 4


def test_table_figure_and_csv(run: Run, tmp_path: Path) -> None:
    figure, table = tmp_path / "designs.svg", tmp_path / "designs.csv"
    found = run("compare", *SMALL, "--designs", "cpu_only", "--figure", figure, "-o", table)
    assert "cpu_only" in figure.read_text()
    assert table.read_text().splitlines()[0].startswith("design,feasible,why_not")
    assert not found.out, found.err
    shown = run("compare", *SMALL, "--designs", "cpu_only").out
    assert "over default" in shown or "over cpu_only" in shown
    assert "Memory in GB" in shown


@pytest.mark.slow
def test_all_designs_are_rows(run: Run) -> None:
    found = json.loads(run("compare", *SERVED, "--designs", "all", "-f", "json").out)
    assert [row["design"] for row in found["designs"]] == ["default", *DESIGNS]
    for row in found["designs"]:
        assert row["feasible"] == (row["step_us"] is not None) == (row["why_not"] is None)


def test_designs_are_listed(run: Run) -> None:
    assert "sockets=auto" in run("compare").out
    assert "--workload" in run("compare", "--designs", "cpu_only").err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--designs", "cpu_onli"), "nearest: cpu_only"),
        (("--designs", ","), "lists them"),
        (("--designs", "cpu_only+cpu_only"), "comes twice"),
        (("--designs", "cpu_only", "--set", "cpu_only.socket=1"), "expected: sockets"),
        (("--designs", "cpu_only", "--set", "cpu_only.sockets=many"), "expected a whole number"),
        (("--designs", "cpu_only", "--set", "hotline.hot_mib=1"), "not among the designs"),
        (("--designs", "cpu_only", "--usd-per-kwh", "-1"), "expected 0 or more"),
        (("--designs", "cpu_only", "--rate", "-5"), "a rate of -5"),
        (("--designs", "cpu_only", "--batch", "10000000000"), "'--batch'"),
        (("--designs", "default+cpu_only"), "cannot be combined with other designs"),
        (("--designs", "cpu_only+"), "both sides of each +"),
        (("--designs", "hotline", "--set", "hotline.hot_mib=nan"), "expected a number"),
        (("--designs", "hotline", "--set", "hotline.hot_mib=-1"), "expected a number from 0"),
        (("--designs", "cpu_only,neo,cpu_only"), "cpu_only comes twice"),
        (("--designs", "neo", "--set", "neo.rows=fp1"), 'one of "fp32", "fp16"'),
        (
            ("--designs", "low_precision", "--set", "low_precision.exchange=fp1"),
            "one of fp32, fp16",
        ),
        (
            ("--designs", "software_memory", "--set", "software_memory.drive=pm9"),
            "software_memory.drive 'pm9': unknown: one of micron-9100-max, p3700",
        ),
        (
            ("--designs", "smartnic", "--set", "smartnic.adapter=pm9a3"),
            "smartnic.adapter 'pm9a3': unknown: one of bluefield-2, bluefield-3",
        ),
        (("--designs", "smartnic", "--set", "smartnic.adapter=x.toml"), "x.toml: cannot be read"),
    ],
)
def test_bad_input_is_one_line(run: Run, words: tuple[str, ...], said: str) -> None:
    found = run("compare", *SMALL, *words)
    assert found.status == 2
    assert said in found.err
    assert len(found.err.strip().splitlines()) == 1


NOWHERE = (
    *("compare", "--workload", "criteo-kaggle", "--hardware", "t4", "--designs", "gpu_only"),
    *("--set", "workload.table.rows=1000000000"),
)


def test_a_rate_that_cannot_be_is_refused_where_no_design_can_be_either(run: Run) -> None:
    found = run(*NOWHERE, "--rate", "nan", "-f", "json")
    assert (found.status, found.out) == (2, "")
    assert "a rate of nan" in found.err


@pytest.mark.slow
def test_sequences_are_balanced_and_their_tables_stay(run: Run) -> None:
    """In their own software; a design that pools or repeats rows says what stops it."""
    sequences = ("--workload", "dlrm-v4-hstu", "--hardware", "hgx-mi350x")
    found = run("compare", *sequences, "--designs", "balanced_sequences,gpu_only", "-f", "json")
    default, balanced, moved = json.loads(found.out)["designs"]
    assert balanced["step_us"] < default["step_us"]
    assert any("computed beside the step before" in note for note in balanced["notes"])
    assert not moved["feasible"] or moved["step_us"] == default["step_us"]
    hotline = json.loads(run("compare", *sequences, "--designs", "hotline", "-f", "json").out)
    assert "of a model of sequences this is not modelled" in hotline["designs"][1]["why_not"]
    assert "balanced" not in run("compare", *SMALL, "--designs", "balanced_sequences").err


def test_without_designs_all_are_compared_and_none_of_nothing(run: Run) -> None:
    """It used to list the designs and to say nothing of the workload."""
    assert run("compare", *SERVED).out == run("compare", *SERVED, "--designs", "all").out
    assert "hotline" in run("compare").out
    for words, said in ((SMALL[:2], "name the machine"), (SMALL[2:4], "name the workload")):
        asked = run("compare", *words)
        assert (asked.status, asked.out) == (2, "")
        assert said in asked.err


def test_names_and_levers_are_whole_at_80_columns(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = run("compare", *SERVED).out
    assert "…" not in shown
    assert "no room for" not in shown
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert shown.count("\nsoftware_memory ") == 3


def test_a_profile_that_is_none_is_one_line(run: Run) -> None:
    found = run("compare", *SMALL, "--designs", "neo", "--overheads", "house")
    assert found.status == 2
    assert not found.out
    assert "house: no such overhead profile" in found.err


def test_a_ladder_has_a_row_for_each_step(run: Run) -> None:
    asked = ("compare", *SMALL, "--designs", "neo,smartnic", "--ladder")
    answer = json.loads(run(*asked, "-f", "json").out)
    check_schema("compare", answer)
    assert [row["design"] for row in answer["designs"]] == ["neo"] * 7 + ["smartnic"] * 2
    shown = run(*asked).out
    for row in answer["designs"]:
        assert row["step"] in shown
    assert "+ smartnic changes nothing here: not applied" in shown


def test_steps_that_cannot_be_for_one_reason_say_it_once(run: Run) -> None:
    found = run("compare", *SMALL[:2], "--hardware", "cpu-epyc", "--designs", "neo", "--ladder")
    assert found.out.count("has no device memory to shard tables over") == 1
