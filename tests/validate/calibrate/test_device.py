"""Calibration of a CPU by its steps: known factors are recovered, and bad tables are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from perfmodel.cost.cpu.parameters import reference_cpu
from perfmodel.errors import UsageError
from perfmodel.hardware import Device, device
from perfmodel.validate.calibrate.device import fit_any_device, fit_device
from perfmodel.validate.calibrate.steps import MeasuredStep, predict_step, read_steps

TABLE = Path(__file__).resolve().parents[3] / "traces" / "cpu_ops" / "cpu_epyc_steps.csv"


def _measured_on(machine: Device, count: int) -> list[MeasuredStep]:
    """Configurations with the times that `machine` is predicted to take."""
    steps = read_steps(TABLE)[:count]
    return [replace(step, step_us=predict_step(step, machine)[0]) for step in steps]


def _write(path: Path, frame: pd.DataFrame) -> Path:
    frame.to_csv(path, index=False)
    return path


def test_a_cpu_whose_products_take_half_as_long_again_is_recovered() -> None:
    known = reference_cpu().calibration
    matmul = {**known["matmul"], "work_ratio": 1.5 * known["matmul"]["work_ratio"]}
    steps = _measured_on(replace(reference_cpu(), calibration={**known, "matmul": matmul}), 20)
    fit = fit_device(steps, replace(reference_cpu(), calibration={}), seed=3)
    (errors,) = fit.errors
    assert errors["n"] >= 8
    assert errors["median_pct"] < 10
    ratio = fit.device.calibration["matmul"]["work_ratio"] / known["matmul"]["work_ratio"]
    assert ratio > 1.25
    assert 0 < fit.device.calibration["host.host_step"]["spread_frac"] < 0.5


def test_the_file_holds_the_device_with_its_calibration(tmp_path: Path) -> None:
    table = _write(tmp_path / "steps.csv", pd.read_csv(TABLE).head(18))
    fit, text = fit_any_device([table], "generic-cpu", stem="mine")
    target = tmp_path / "mine.toml"
    target.write_text(text)
    again = device(target)
    for section, values in fit.device.calibration.items():
        assert dict(again.calibration[section]) == pytest.approx(dict(values), rel=1e-4)
    assert "steps.csv: sha256" in text


def test_a_calibration_is_refined_where_it_holds_values() -> None:
    steps = _measured_on(reference_cpu(), 20)
    fit = fit_device(steps, reference_cpu())
    for section, values in reference_cpu().calibration.items():
        assert values.keys() <= fit.device.calibration[section].keys()
    off = [predict_step(step, fit.device)[0] / step.step_us - 1 for step in steps]
    assert np.max(np.abs(off)) < 1e-3


def test_a_step_has_an_interval_before_its_spread_is_known() -> None:
    step = read_steps(TABLE)[0]
    fitted = device("cpu-epyc")
    host = dict(fitted.calibration["host.host_step"])
    del host["spread_frac"]
    unknown = replace(fitted, calibration={**fitted.calibration, "host.host_step": host})
    known, wider = predict_step(step, fitted), predict_step(step, unknown)
    assert wider[0] == pytest.approx(known[0])
    assert wider[2] > known[2]


def test_too_few_steps_are_refused(tmp_path: Path) -> None:
    path = _write(tmp_path / "steps.csv", pd.read_csv(TABLE).head(12))
    with pytest.raises(UsageError, match=r"steps\.csv: 1\d configurations: a fit needs 16"):
        fit_any_device([path], "generic-cpu", stem="mine")


def test_two_devices_and_other_tables_are_refused(tmp_path: Path) -> None:
    frame = pd.read_csv(TABLE).head(4)
    one = _write(tmp_path / "one.csv", frame)
    two = _write(tmp_path / "two.csv", frame.assign(device="Another"))
    with pytest.raises(UsageError, match=r"measured on 'Another', but .*: fit one device"):
        fit_any_device([one, two], stem="mine")
    other = _write(tmp_path / "other.csv", pd.DataFrame({"a": [1], "op": ["mm"]}))
    with pytest.raises(UsageError, match=r"other\.csv: is not a table of step times"):
        fit_any_device([other], stem="mine")
