"""Published throughput: which rows become a configuration, which are left out, and errors."""

from __future__ import annotations

from collections.abc import Mapping
from math import isnan
from pathlib import Path

import pandas as pd
import pytest

from benchmarks.published.mlperf import (
    BETWEEN_EVALUATIONS,
    DCNV2_COLUMNS,
    MLPERF_COLUMNS,
    evaluate_published,
    read_mlperf,
    row_of,
    summary,
    with_scaled,
)
from perfmodel.errors import PerfmodelError

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
    assert left[1].startswith(reason)
    assert left[0] == f"{change.get('round', 'v4.0')} {change.get('submitter', 'One')} box"


def test_one_hot_rates_contain_evaluations(tmp_path: Path) -> None:
    (found,), _ = read_mlperf(mlperf(tmp_path, {"benchmark": "dlrm"}))
    assert (found.rates, found.workload) == ((13e6,), "dlrm-mlperf")


def test_a_round_of_other_software_is_a_group_of_its_own(tmp_path: Path) -> None:
    """Before v1.1 HugeCTR computed a batch's indices within the step, which is not modelled."""
    one_hot = {"benchmark": "dlrm", "round": "v1.1"}
    early = one_hot | {"round": "v1.0", "ttt_min_median": "4.1"}
    later, first = read_mlperf(mlperf(tmp_path, one_hot, early))[0]
    assert [each.group for each in (later, first)] == ["dlrm", "dlrm v1.0"]
    assert row_of(first, 1e6, 1e6, 1e6)["held_out"]


def test_errors_are_of_the_rate(tmp_path: Path) -> None:
    (found,), _ = read_mlperf(mlperf(tmp_path, {}))
    rows = with_scaled(pd.DataFrame([row_of(found, 12e6, 11e6, 13e6)]))
    errors = summary(rows, "group").loc["dlrm_dcnv2"]
    assert rows.error_pct[0] == pytest.approx(-20)
    assert (errors.one_node_pct, errors.bias_pct) == (pytest.approx(20), pytest.approx(-20))
    assert isnan(errors.several_pct)
    assert isnan(errors.rank_correlation)


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
    made = [row_of(one, 12e6, 11e6, 16e6), row_of(many, 60e6, 55e6, 65e6)]
    rows = with_scaled(pd.DataFrame(made))
    assert isnan(rows.scaled_pct[0])
    assert rows.scaled_pct[1] == pytest.approx(140)
    assert rows.within.tolist() == [True, False]
    errors = summary(rows, "group", "devices", "joined_by")
    assert errors.median_pct["dlrm_dcnv2", 64, "network"] == pytest.approx(20)
    assert errors.n["dlrm_dcnv2", 8, "links"] == 1


@pytest.mark.parametrize("change", [{"global_batch": "-3"}, {"n_nodes": "many"}])
def test_figures_that_cannot_be_name_line_and_column(
    tmp_path: Path, change: dict[str, str]
) -> None:
    with pytest.raises(PerfmodelError, match=rf"m.csv: row 1: {next(iter(change))}: expected"):
        read_mlperf(mlperf(tmp_path, change))


def test_another_table_is_named(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("a,b\n1,2\n")
    with pytest.raises(PerfmodelError, match="no column round"):
        read_mlperf(tmp_path / "m.csv")


@pytest.mark.slow
def test_reference_rows_keep_their_order(reference: Path) -> None:
    """Every configuration of linked GPUs is predicted, in the order of their rates."""
    listed, _ = read_mlperf(reference / "dlrm/mlperf_dlrm.csv")
    rows, unpredicted = evaluate_published(listed)
    errors = summary(rows, "group")
    assert errors.n.to_dict() == {"dlrm v1.0": 4, "dlrm": 4, "dlrm_dcnv2": 6}
    assert (errors.rank_correlation > 0.9).all()
    assert unpredicted == []
