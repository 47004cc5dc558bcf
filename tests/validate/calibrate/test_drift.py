"""A machine that changes its speed between two tables: what the reference work takes out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from cost.kernels.cpu_machine import MACHINE
from validate.calibrate.test_device import _frame, _write
from validate.evaluate.test_truth import HEAD

from perfmodel.collect.records import PARTS, REFERENCE_COLUMNS
from perfmodel.cost.cpu.drift import Drift, drifted
from perfmodel.errors import UsageError
from perfmodel.hardware import Device
from perfmodel.validate.calibrate.cpu_step import (
    drift_of_record,
    drift_of_steps,
    shares_of,
    steps_us,
)
from perfmodel.validate.calibrate.device import fit_device
from perfmodel.validate.calibrate.device_data import read_tables
from perfmodel.validate.calibrate.tables import MeasuredStep, read_steps
from perfmodel.validate.evaluate.results import Errors
from perfmodel.validate.evaluate.step_times import evaluate_steps

THEN = np.array([200.0, 100.0, 800.0, 300.0])
SAME = dict.fromkeys(PARTS, 1.0)
LEVEL = {f"{part}_us": value for part, value in zip(PARTS, THEN.tolist(), strict=True)}
CALIBRATED = replace(
    MACHINE, calibration={"reference": LEVEL, "host.host_step": {"spread_frac": 0.1}}
)


def _steps(folder: Path) -> list[MeasuredStep]:
    """Twelve configurations, from those of calls alone to those of memory and of products."""
    rows = [
        f"s{tables}_{rows}_{batch},cpu,1,2,{tables},{tables}x{rows},32,{pooling},{batch},0.0,"
        f"13-{width}-32,{width}-1,1,1,0.01\n"
        for tables, rows, pooling, batch, width in (
            *((n, 1000, 1, 32, 16) for n in (1, 4, 16)),
            *((4, 2_000_000, 40, batch, 16) for batch in (512, 1024, 2048)),
            *((2, 1000, 1, batch, 1024) for batch in (512, 1024, 2048)),
            *((8, 100_000, 10, batch, 128) for batch in (64, 256, 1024)),
        )
    ]
    path = folder / "t.csv"
    path.write_text(HEAD + "".join(rows))
    return read_steps(path)


def _measured_on(steps: list[MeasuredStep], device: Device, now_us: object) -> list[MeasuredStep]:
    times = steps_us(steps, device).tolist()
    reading = tuple(np.asarray(now_us, np.float64).tolist())
    return [
        replace(step, step_us=time, median_us=time, reference_us=reading)
        for step, time in zip(steps, times, strict=True)
    ]


def _evaluated(steps: list[MeasuredStep]) -> Errors:
    return evaluate_steps(steps, CALIBRATED)


def test_a_slower_machine_is_no_error_of_the_model(tmp_path: Path) -> None:
    slow = drifted(CALIBRATED, Drift(dict.fromkeys(PARTS, 1.3), 0.0))
    found = _evaluated(_measured_on(_steps(tmp_path), slow, THEN * 1.3))
    assert found["summary"]["median_pct"] == pytest.approx(100 * (1 - 1 / 1.3))
    referenced = found["referenced"]
    assert referenced["median_pct"] == pytest.approx(0, abs=1e-9)
    assert (referenced["coverage_frac"], referenced["errors"]) == (pytest.approx(1.0), 0)
    assert "takes 1.30 times as long" in found.warnings[0]
    assert "12 of 12 comparisons are not called errors" in found.warnings[1]


def test_the_part_that_moved_is_named_and_moves_what_is_made_of_it(tmp_path: Path) -> None:
    slow = drifted(CALIBRATED, Drift(SAME | {"memory": 2.0}, 0.0))
    found = _evaluated(_measured_on(_steps(tmp_path), slow, THEN * [1, 1, 2, 1]))
    assert found["referenced"]["worst_pct"] == pytest.approx(0, abs=1e-9)
    assert "memory 2.00, python 1.00; changed: memory;" in found.warnings[0]
    ratios = [row["drift_ratio"] for row in found.rows]
    assert max(ratios) > 1.4 > 1.1 > min(ratios)


def test_steps_that_move_without_the_reference_are_errors(tmp_path: Path) -> None:
    steps = [
        replace(it, step_us=1.3 * it.step_us, median_us=1.3 * it.median_us)
        for it in _measured_on(_steps(tmp_path), CALIBRATED, THEN)
    ]
    found = _evaluated(steps)
    assert found["drift"]["changed"] == []
    assert all(row["is_error"] for row in found.rows)
    assert found["referenced"]["median_pct"] == pytest.approx(100 * (1 - 1 / 1.3))
    assert found["referenced"]["coverage_frac"] == pytest.approx(0.0)
    assert len(found.warnings) == 1


def test_intervals_are_wider_where_steps_scatter_though_the_reference_does_not(
    tmp_path: Path,
) -> None:
    """Readings are shorter than what disturbs the steps: medians 1.2 times as long as the rest."""
    steps = _measured_on(_steps(tmp_path), CALIBRATED, THEN)
    calm = _evaluated(steps).rows[0]
    troubled = _evaluated([replace(step, median_us=1.2 * step.step_us) for step in steps]).rows[0]
    assert troubled["referenced_high_us"] == pytest.approx(
        calm["predicted_us"] * np.exp(np.hypot(np.log(1.1), 1.645 / 1.282 * np.log(1.2))), rel=1e-3
    )


def test_intervals_are_wider_where_the_reference_scatters(tmp_path: Path) -> None:
    steps = _measured_on(_steps(tmp_path), CALIBRATED, THEN)
    calm = _evaluated(steps).rows[0]
    scattered = [
        replace(step, reference_us=tuple((THEN * ratio).tolist()))
        for step, ratio in zip(steps, np.tile([0.8, 1.25], 6).tolist(), strict=True)
    ]
    wide = _evaluated(scattered).rows[0]
    assert (
        wide["referenced_high_us"] / wide["referenced_us"]
        > calm["referenced_high_us"] / calm["predicted_us"]
    )
    assert calm["referenced_high_us"] == pytest.approx(calm["high_us"])


def test_what_holds_no_reference_is_said(tmp_path: Path) -> None:
    steps = _steps(tmp_path)
    (line,) = evaluate_steps(steps, CALIBRATED).warnings
    assert line.startswith("t.csv: holds no reference work")
    (line,) = evaluate_steps(_measured_on(steps, MACHINE, THEN), MACHINE).warnings
    assert line.startswith("round-cpu was calibrated without reference work")
    assert evaluate_steps(steps, CALIBRATED)["referenced"]["n"] == 0


def test_fewer_threads_do_not_compare(tmp_path: Path) -> None:
    steps = [replace(it, threads=1) for it in _measured_on(_steps(tmp_path), CALIBRATED, THEN)]
    assert drift_of_steps(steps, CALIBRATED).whole is None


def test_shares_add_up_to_the_whole(tmp_path: Path) -> None:
    steps = _steps(tmp_path)
    shares = shares_of(lambda device: steps_us(steps, device), MACHINE)
    assert shares.sum(axis=1) == pytest.approx(np.ones(len(steps)), abs=0.01)
    assert shares.min() > -1e-9


def test_a_fit_is_in_units_of_its_reference(tmp_path: Path) -> None:
    """Half of the rows were measured while the machine took 1.5 times as long."""
    frame = _frame(200)
    slow = np.where(np.arange(len(frame)) < 100, 1.0, 1.5)
    readings = {name: us * slow for name, us in zip(REFERENCE_COLUMNS, THEN, strict=True)}
    moved = frame.assign(duration_us=frame["duration_us"] * slow)
    raw = fit_device(read_tables([_write(tmp_path / "raw.csv", moved)]), MACHINE)
    tables = [
        _write(tmp_path / "a.csv", moved.assign(**readings).iloc[:100]),
        _write(tmp_path / "b.csv", moved.assign(**readings).iloc[100:]),
    ]
    fit = fit_device(read_tables(tables), MACHINE)
    assert raw.errors[0].median_pct > 10
    assert fit.errors[0].median_pct < 4
    kept = fit.device.calibration["reference"]
    assert kept["memory_us"] == pytest.approx(THEN[2])
    assert kept["spread_frac"] > 0.2
    assert any(note.startswith("b: the machine takes 1.50 times as long") for note in fit.notes)
    assert any("holds no reference work" in note for note in raw.notes)


def test_a_damaged_reading_names_its_row(tmp_path: Path) -> None:
    frame = _frame(6).assign(**dict.fromkeys(REFERENCE_COLUMNS, 5.0))
    for value in (-1.0, "many"):
        bad = frame.astype({"reference_cache_us": object})
        bad.loc[2, "reference_cache_us"] = value
        with pytest.raises(UsageError, match=rf"row 3: reference_cache_us is {value}; expected"):
            read_tables([_write(tmp_path / "t.csv", pd.DataFrame(bad))])


def test_a_record_of_the_collector_says_how_fast_the_machine_is_now(tmp_path: Path) -> None:
    path = tmp_path / "reference.json"
    figures = {
        part: {"p10_us": us, "median_us": 1.1 * us}
        for part, us in zip(PARTS, (THEN * 1.2).tolist(), strict=True)
    }
    path.write_text(json.dumps({"reference": figures | {"interrupted_ratio": 1.0}}))
    found = drift_of_record(path, CALIBRATED)
    assert found.ratios == pytest.approx(dict.fromkeys(PARTS, 1.2))
    assert found.changed == list(PARTS)
    with pytest.raises(UsageError, match="was calibrated without reference work"):
        drift_of_record(path, MACHINE)
    for text in ("{", "{}", '{"reference": {"compute": 1}}'):
        path.write_text(text)
        with pytest.raises(UsageError, match="is no record of the collector"):
            drift_of_record(path, CALIBRATED)
