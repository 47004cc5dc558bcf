"""Steps predicted from configurations, against a table of measured ones."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from cost.kernels.cpu_machine import MACHINE

from perfmodel.cost.durations import durations_of
from perfmodel.errors import PerfmodelError, UsageError
from perfmodel.validate.calibrate.steps import predict_step, read_steps, step_rows, with_threads
from perfmodel.validate.evaluate.results import compared
from perfmodel.validate.evaluate.tables import evaluate_steps, step_summary

HEAD = (
    "name,device,ranks,threads_per_rank,tables,rows_per_table,dim,pooling,batch_per_rank,"
    "zipf_alpha,bottom_mlp,top_mlp,p10_us,median_us,halves_frac\n"
)
ROW = "small,cpu,1,2,3,2x1000 1x50,8,4,32,0.0,13-16-8,16-1,1500,1600,0.01\n"


def _table(path: Path, *rows: str) -> Path:
    path.write_text(HEAD + "".join(rows))
    return path


def test_a_row_is_a_workload(tmp_path: Path) -> None:
    (step,) = read_steps(_table(tmp_path / "t.csv", ROW))
    assert [table.rows for table in step.workload.tables] == [1000, 1000, 50]
    assert step.workload.bottom_widths == (13, 16, 8)
    assert (step.threads, step.workload.batch, step.step_us) == (2, 32, 1500)


def test_a_step_has_every_lookup_gradient_and_update(tmp_path: Path) -> None:
    (step,) = read_steps(_table(tmp_path / "t.csv", ROW))
    rows = step_rows(step)
    bags = [d for op, d in zip(rows.op, rows.direction, strict=True) if op == "embedding_bag"]
    assert sorted(bags) == ["bwd"] * 3 + ["fwd"] * 3 + ["update"] * 3
    products = [op for op in rows.op if op in ("mm", "linear", "bmm")]
    assert products.count("linear") == 4
    assert products.count("bmm") == 3
    assert rows.op.count("unknown") == 0
    assert {"host_call", "host_node", "host_update", "host_step"} <= set(rows.op)


def test_a_prediction_is_the_sum_of_its_families(tmp_path: Path) -> None:
    (step,) = read_steps(_table(tmp_path / "t.csv", ROW))
    us, low_us, high_us = predict_step(step, MACHINE)
    assert us == pytest.approx(durations_of(step_rows(step), MACHINE).duration_us.sum())
    assert low_us < us < high_us


def test_one_thread_sees_one_core() -> None:
    one = with_threads(MACHINE, 1)
    assert (one.sm_count, one.l2_bytes, one.fp32_tflop_per_s) == (1, 1_000_000, 0.1)
    assert with_threads(MACHINE, 4) == MACHINE


def test_the_summary() -> None:
    rows = [compared(us, 0.9 * us, 1.1 * us, 100.0) for us in (100.0, 105.0, 80.0)]
    summary = step_summary([row | {"spread_pct": None} for row in rows])
    assert summary["median_pct"] == pytest.approx(5)
    assert summary["worst_pct"] == pytest.approx(20)
    assert summary["coverage_frac"] == pytest.approx(2 / 3)


def test_blind_predictions_tell_nothing_measured(tmp_path: Path) -> None:
    steps = read_steps(_table(tmp_path / "t.csv", ROW))
    (row,) = evaluate_steps(steps, MACHINE, blind=True).rows
    assert {row[key] for key in ("measured_us", "error_pct", "within", "spread_pct")} == {None}


@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        ("cpu,1,2", "cpu,2,1", "ranks is 2; steps of one rank are predicted here"),
        ("13-16-8", "13-x", "bottom_mlp is 13-x; expected widths"),
        ("13-16-8", "13", "bottom_mlp: expected a list of one or more"),
        (",1500,", ",-1,", "expected a time above 0"),
        (",1500,", ",inf,", "expected a time above 0"),
        ("cpu,1,2", "cpu,inf,2", "ranks is inf"),
        ("cpu,1,2", "cpu,1,0", "threads_per_rank is 0"),
        ("2x1000", "2x0", "rows: expected a whole number"),
        ("2x1000", "2x", "rows_per_table: 2x: expected rows"),
        ("2x1000 1x50", "", "rows_per_table is missing"),
        ("2x1000 1x50", "-3", "rows: expected a whole number"),
        ("2x1000", "-2x1000", "count: expected a whole number"),
        (",8,4,32,", ",0,4,32,", "dim: expected a whole number"),
        (",8,4,32,", ",8,0,32,", "pooling: expected a number"),
        (",8,4,32,", ",8,4,1e99,", "batch: expected a whole number"),
        (",32,0.0,", ",32,-1,", "alpha: expected a number"),
        (",0.01", ",inf", "halves_frac is inf"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, good: str, bad: str, message: str) -> None:
    with pytest.raises(PerfmodelError, match=rf"t\.csv: row 1: .*{re.escape(message)}"):
        read_steps(_table(tmp_path / "t.csv", ROW.replace(good, bad)))


def test_a_column_of_rows_alone(tmp_path: Path) -> None:
    """A table of one size each was none of configurations."""
    for text in ("1000", "1000.0"):
        (step,) = read_steps(_table(tmp_path / "t.csv", ROW.replace("2x1000 1x50", text)))
        assert [table.rows for table in step.workload.tables] == [1000]


def test_a_table_of_something_else_is_named(tmp_path: Path) -> None:
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(UsageError, match=r"other\.csv: is not a table of step times"):
        read_steps(path)


def test_a_step_that_cannot_be_predicted_names_the_row(tmp_path: Path) -> None:
    (step,) = read_steps(_table(tmp_path / "t.csv", ROW))
    with pytest.raises(UsageError, match=r"t\.csv: row 1: small: a global batch of 0"):
        evaluate_steps([replace(step, workload=replace(step.workload, batch=0))], MACHINE)
