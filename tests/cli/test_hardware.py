"""`perfmodel hardware`."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from cli.conftest import Run
from cli.samples import check_schema

from perfmodel.hardware import KINDS, names

MINE = 'extends = "h100-sxm"\nhbm_gb_per_s = 6000\n'


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(MINE)
    return path


@pytest.mark.parametrize("arguments", [(), ("list",)])
def test_list_shows_every_part(run: Run, arguments: tuple[str, ...]) -> None:
    ran = run("hardware", *arguments)
    assert ran.status == 0
    assert all(name in ran.out for name in names())
    assert max(map(len, ran.out.splitlines())) <= 100


@pytest.mark.parametrize("kind", KINDS)
def test_list_of_one_kind(run: Run, kind: str) -> None:
    answer = json.loads(run("hardware", "--kind", kind, "--format", "json").out)
    check_schema("hardware", answer)
    assert sorted(part["name"] for part in answer["parts"]) == names(kind)


def test_list_of_what_holds_words(run: Run) -> None:
    answer = json.loads(run("hardware", "list", "AMD", "cdna3", "--format", "json").out)
    assert [part["name"] for part in answer["parts"]] == ["mi300x", "mi308x", "mi325x"]
    ran = run("hardware", "list", "gb200", "--kind", "cluster")
    assert "gb200-nvl72-rack" in ran.out
    assert "NVIDIA" in ran.out


def test_list_names_each_maker_once_and_together(run: Run) -> None:
    lines = run("hardware", "list", "--kind", "device").out.splitlines()
    assert [line.split()[0] for line in lines if line.startswith(("AMD", "Intel", "NVIDIA"))] == [
        "AMD",
        "Intel",
        "NVIDIA",
    ]


def test_a_cpu_is_shown_as_device_and_host(run: Run) -> None:
    answer = json.loads(run("hardware", "epyc-7742", "--format", "json").out)
    check_schema("hardware", answer)
    assert [part["kind"] for part in answer["parts"]] == ["device", "host"]
    ran = run("hardware", "show", "epyc-7742")
    assert "zen2" in ran.out
    assert "single_thread_ratio" in ran.out


def test_texts_have_their_source(run: Run) -> None:
    (part,) = json.loads(run("hardware", "t4", "--format", "json").out)["parts"]
    assert part["texts"]["compute_capability"] == "7.5"
    assert set(part["text_sources"]) == {"architecture", "compute_capability", "memory_kind"}


@pytest.mark.parametrize("arguments", [("show", "h100-sxm"), ("h100-sxm",)])
def test_show_names_the_source_of_each_figure(run: Run, arguments: tuple[str, ...]) -> None:
    ran = run("hardware", *arguments)
    assert "hbm_gb_per_s" in ran.out
    assert "3,350" in ran.out
    assert "ml-engineering" in ran.out
    answer = json.loads(run("hardware", *arguments, "--format", "json").out)
    check_schema("hardware", answer)
    (part,) = answer["parts"]
    assert part["texts"]["usual_node"] == "dgx-h100"
    assert {key: value for key, value in part["figures"][0].items() if key != "source"} == {
        "key": "sm_count",
        "value": 132,
    }


def test_a_node_holds_its_parts(run: Run) -> None:
    (part,) = json.loads(run("hardware", "dgx-h100", "--format", "json").out)["parts"]
    assert part["parts"]["device"]["name"] == "h100-sxm"


def test_csv_has_a_row_per_figure(run: Run) -> None:
    rows = list(csv.DictReader(run("hardware", "mi300x", "--format", "csv").out.splitlines()))
    assert {"kind": "device", "name": "mi300x", "key": "hbm_gb_per_s"}.items() <= next(
        row for row in rows if row["key"] == "hbm_gb_per_s"
    ).items()
    assert all(row["source"] for row in rows)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hbm_gbps = 1\n", "hbm_gbps"),
        ("hbm_gb_per_s = -1\n", "hbm_gb_per_s"),
        ("= 3\n", "TOML"),
    ],
)
def test_a_file_that_does_not_hold(run: Run, mine: Path, text: str, said: str) -> None:
    mine.write_text('extends = "h100-sxm"\n' + text)
    ran = run("hardware", "show", mine)
    assert (ran.status, ran.out) == (2, "")
    assert said in ran.err
    assert str(mine) in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("h900",),
        ("show",),
        ("list", "no-such-thing"),
        ("--kind", "gpu"),
        ("h100-sxm", "--kind", "device"),
    ],
)
def test_bad_usage(run: Run, arguments: tuple[str, ...]) -> None:
    ran = run("hardware", *arguments)
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith("perfmodel: ")
    assert ran.err.count("\n") == 1
