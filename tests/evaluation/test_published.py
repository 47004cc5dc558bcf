"""Published throughput: which rows become a configuration, which are left out, and errors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

from perfmodel.cli import application
from perfmodel.errors import PerfmodelError
from perfmodel.evaluation.published_throughput import (
    BETWEEN_EVALUATIONS,
    DCNV2_COLUMNS,
    MLPERF_COLUMNS,
    PublishedError,
    PublishedErrors,
    read_mlperf,
)

RUN = {
    "round": "v4.0",
    "submitter": "One",
    "system": "box",
    "benchmark": "dlrm_dcnv2",
    "n_nodes": "1",
    "accel_per_node": "8",
    "accelerator": "NVIDIA H100-SXM5-80GB (700W)",
    "global_batch": "55296",
    "ttt_min_median": "3.8",
    "samples_per_s_train_est": "15e6",
    "samples_per_s_logged": "13e6",
}


def table(path: Path, columns: tuple[str, ...], *rows: Mapping[str, str]) -> Path:
    lines = [",".join(row[column] for column in columns) for row in rows]
    path.write_text("\n".join([",".join(columns), *lines]) + "\n")
    return path


def mlperf(path: Path, *changes: dict[str, str]) -> Path:
    return table(path / "m.csv", MLPERF_COLUMNS, *(RUN | change for change in changes))


def test_runs_of_one_configuration_are_one_row(tmp_path: Path) -> None:
    other = {"submitter": "Two", "samples_per_s_train_est": "16e6"}
    (found,), left = read_mlperf(mlperf(tmp_path, {}, other))
    assert (found.rates, found.workload, left) == ((15e6, 16e6), "dlrm-dcnv2", [])
    assert found.name == "8 h100-sxm, batch 55,296"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"round": "v4.1"}, "the same run as in a round before"),
        ({"samples_per_s_train_est": ""}, "no samples_per_s_train_est"),
        ({"benchmark": "bert"}, "benchmark bert"),
        ({"accel_per_node": "0", "submitter": "Two"}, "no accelerators"),
        ({"accelerator": "TPU", "submitter": "Two"}, "unknown hardware 'TPU'"),
        ({"accelerator": "NVIDIA L40S", "submitter": "Two"}, "l40s: no links between its GPUs"),
    ],
)
def test_other_rows_are_left_out_by_name(
    tmp_path: Path, change: dict[str, str], reason: str
) -> None:
    found, (left,) = read_mlperf(mlperf(tmp_path, {}, change))
    assert len(found) == 1
    assert left.reason.startswith(reason)
    assert left.name == f"{change.get('round', 'v4.0')} {change.get('submitter', 'One')} box"


def test_one_hot_rates_contain_evaluations(tmp_path: Path) -> None:
    (found,), _ = read_mlperf(mlperf(tmp_path, {"benchmark": "dlrm"}))
    assert (found.rates, found.workload) == ((13e6,), "dlrm-mlperf")


def test_a_round_of_other_software_is_a_group_of_its_own(tmp_path: Path) -> None:
    """Before v1.1 HugeCTR computed a batch's indices within the step."""
    one_hot = {"benchmark": "dlrm", "round": "v1.1"}
    early = one_hot | {"round": "v1.0", "ttt_min_median": "4.1"}
    later, first = read_mlperf(mlperf(tmp_path, one_hot, early))[0]
    assert [each.group for each in (later, first)] == ["dlrm", "dlrm v1.0"]
    assert (later.settings, first.settings) == ({}, {"implementation__indices_ahead": False})
    assert PublishedError(first, 1e6).is_held_out


def test_errors_are_of_the_rate(tmp_path: Path) -> None:
    (found,), _ = read_mlperf(mlperf(tmp_path, {}))
    errors = PublishedErrors((PublishedError(found, 12e6),), ())
    (summary,) = errors.summary()
    assert errors.rows[0].error_pct == pytest.approx(-20)
    assert summary["one_node"] == {"median_pct": pytest.approx(20), "bias_pct": pytest.approx(-20)}
    assert summary["several_nodes"]["median_pct"] is None
    assert list(summary["generations"]) == ["hopper"]


def test_rates_between_evaluations_are_a_table_of_their_own(tmp_path: Path) -> None:
    """Of DLRM-DCNv2, with a name in brackets where the one before them says too little."""
    row = {name: RUN.get(name, "") for name in DCNV2_COLUMNS}
    row |= {"accelerator": "NVIDIA Blackwell GPU (B200-SXM-180GB)", BETWEEN_EVALUATIONS: "25e6"}
    newer = table(tmp_path / "newer.csv", DCNV2_COLUMNS, row)
    (old, new), left = read_mlperf(mlperf(tmp_path, {}), newer)
    assert (new.name, new.rates, new.workload) == ("8 b200, batch 55,296", (25e6,), "dlrm-dcnv2")
    assert (old.rates, left) == ((15e6,), [])


def test_the_alternative_is_the_rate_of_one_node_times_nodes(tmp_path: Path) -> None:
    """15 M/s of 8 GPUs are 120 of 64, where 50 were published: 140 % off."""
    several = {"n_nodes": "8", "samples_per_s_train_est": "50e6", "submitter": "Two"}
    one, many = read_mlperf(mlperf(tmp_path, {}, several))[0]
    rows = (PublishedError(one, 12e6, 11e6, 16e6), PublishedError(many, 60e6, 55e6, 65e6))
    answer = PublishedErrors(rows, ()).to_dict()
    assert [each["scaled_error_pct"] for each in answer["rows"]] == [None, pytest.approx(140)]
    assert [each["within"] for each in answer["rows"]] == [True, False]
    assert [(each["gpus"], each["joined_by"]) for each in answer["by_gpus"]] == [
        (8, "links"),
        (64, "network"),
    ]
    assert answer["by_gpus"][1]["median_pct"] == pytest.approx(20)


@pytest.mark.parametrize("change", [{"global_batch": "-3"}, {"n_nodes": "many"}])
def test_figures_that_cannot_be_name_line_and_column(
    tmp_path: Path, change: dict[str, str]
) -> None:
    with pytest.raises(PerfmodelError, match=rf"m.csv: line 2: {next(iter(change))}: expected"):
        read_mlperf(mlperf(tmp_path, change))


def test_another_table_is_named(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("a,b\n1,2\n")
    with pytest.raises(PerfmodelError, match="no column round"):
        read_mlperf(tmp_path / "m.csv")


@pytest.mark.slow
def test_reference_rows_keep_their_order(reference: Path) -> None:
    """Every configuration of linked GPUs is predicted, in the order of their rates."""
    path = reference / "dlrm/mlperf_dlrm.csv"
    done = CliRunner().invoke(
        application(), ["evaluate", "published", "--mlperf", str(path), "-f", "json"]
    )
    answer = json.loads(done.stdout)
    assert {each["group"]: each["n"] for each in answer["summary"]} == {
        "dlrm v1.0": 4,
        "dlrm": 4,
        "dlrm_dcnv2": 6,
    }
    assert all(each["rank_correlation"] > 0.9 for each in answer["summary"])
    assert not any("cannot" in row["reason"] for row in answer["left_out"])
