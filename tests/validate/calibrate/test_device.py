"""Calibration of a CPU: known parameters are recovered, and bad tables are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from cost.kernels.cpu_machine import ALONE, MACHINE

from perfmodel.cost.contract import KERNELS
from perfmodel.cost.cpu.family import CpuFamily
from perfmodel.errors import UsageError
from perfmodel.hardware import device
from perfmodel.ops.rows import Rows
from perfmodel.validate.calibrate.device import fit_any_device, fit_device, fit_family
from perfmodel.validate.calibrate.device_data import read_tables
from perfmodel.validate.calibrate.tables import predict_step, read_steps

TRUE = {
    "alone.vector": {"call_us": 0.5, "cold_us": 8.0, "dram_gb_per_s": 9.0, "llc_gb_per_s": 40.0},
    "alone.vector.relu": {"floor_us": 3.0},
    "alone.vector.add": {"floor_us": 1.0},
}


def _model(family: str) -> CpuFamily:
    model = KERNELS[f"cpu/{family}/heuristic"]
    assert isinstance(model, CpuFamily)
    return model


def _frame(count: int = 60) -> pd.DataFrame:
    """Rows of two ops on a CPU with the parameters `TRUE`, as the collector writes them."""
    generator = np.random.default_rng(1)
    shapes = np.round(np.exp(generator.uniform(0, np.log(3000), (count, 2))))
    frame = pd.DataFrame(
        {
            "op": np.where(np.arange(count) % 2, "relu", "add"),
            "device": "Round CPU",
            "dtype": "fp32",
            "direction": "fwd",
            "timing": ALONE,
            "cache": np.where(np.arange(count) % 3 == 0, "cold", "warm"),
            "rows": shapes[:, 0],
            "cols": shapes[:, 1],
        }
    )
    machine = replace(MACHINE, calibration=TRUE)
    found = _model("vector").estimate(Rows.from_frame(frame), machine)
    return frame.assign(duration_us=found.duration_us)


def _write(path: Path, frame: pd.DataFrame) -> Path:
    frame.to_csv(path, index=False)
    return path


def test_known_parameters_are_recovered(tmp_path: Path) -> None:
    frame = _frame(200)
    times = frame["duration_us"].to_numpy()
    measured = read_tables([_write(tmp_path / "t.csv", frame)]).all
    tables = fit_family(_model("vector"), measured, MACHINE)
    assert tables["alone.vector"]["dram_gb_per_s"] == pytest.approx(9, rel=0.15)
    assert tables["alone.vector"]["cold_us"] == pytest.approx(8, rel=0.15)
    again = _model("vector").estimate(measured.rows, replace(MACHINE, calibration=tables))
    assert np.median(np.abs(again.duration_us / times - 1)) < 0.02


def test_held_out_errors_are_small_where_the_model_holds(tmp_path: Path) -> None:
    data = read_tables([_write(tmp_path / "kernels.csv", _frame(200))])
    fit = fit_device(data, MACHINE, seed=3)
    (errors,) = fit.errors
    assert (errors["family"], errors["kind"]) == ("vector", "alone")
    assert 80 < errors["n"] < 120
    assert errors["median_pct"] < 3


def test_the_file_holds_the_device_with_its_calibration(tmp_path: Path) -> None:
    table = _write(tmp_path / "kernels.csv", _frame())
    fit, text = fit_any_device([table], "generic-cpu", stem="mine")
    target = tmp_path / "mine.toml"
    target.write_text(text)
    again = device(target)
    assert again.name == "mine" or again.name == "generic-cpu"
    for section, values in fit.device.calibration.items():
        assert dict(again.calibration[section]) == pytest.approx(dict(values), rel=1e-4)
    assert "kernels.csv: sha256" in text


def test_one_family_alone_is_enough(tmp_path: Path) -> None:
    data = read_tables([_write(tmp_path / "kernels.csv", _frame(6).assign(op="relu"))])
    assert set(fit_device(data, MACHINE).device.calibration) >= {"alone.vector"}


TABLES = Path(__file__).resolve().parents[3] / "traces" / "cpu_ops"


@pytest.mark.slow
def test_steps_tell_of_the_host_and_how_far_held_out_ones_are_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfmodel.validate.calibrate.device.SWEEPS", 1)
    steps = pd.read_csv(TABLES / "cpu_epyc_steps.csv").head(24)
    ops = pd.read_csv(TABLES / "cpu_epyc.csv.gz")
    ops = ops[ops["configuration"].isin(steps["name"])]
    data = read_tables([_write(tmp_path / "ops.csv", ops), _write(tmp_path / "steps.csv", steps)])
    fit = fit_device(data, replace(device("cpu-epyc"), calibration={}))
    of_steps = fit.errors[-1]
    assert of_steps["family"] == "step"
    assert of_steps["n"] >= 8
    assert of_steps["median_pct"] < 20
    assert 0 < fit.device.calibration["host.host_step"]["spread_frac"] < 0.5


def test_a_step_has_an_interval_before_its_spread_is_known() -> None:
    step = read_steps(TABLES / "cpu_epyc_steps.csv")[0]
    fitted = device("cpu-epyc")
    host = dict(fitted.calibration["host.host_step"])
    del host["spread_frac"]
    unknown = replace(fitted, calibration={**fitted.calibration, "host.host_step": host})
    known, wider = predict_step(step, fitted), predict_step(step, unknown)
    assert wider[0] == pytest.approx(known[0])
    assert wider[2] > known[2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"duration_us": -1.0}, "row 1: duration_us is -1.0; expected a time above 0"),
        ({"duration_us": np.nan}, "row 1: duration_us is nan; expected a time above 0"),
        ({"op": "no_such_op"}, "no row of an operator that is known: nothing to fit"),
    ],
)
def test_impossible_tables_are_refused(
    change: dict[str, object], message: str, tmp_path: Path
) -> None:
    path = _write(tmp_path / "kernels.csv", _frame(4).assign(**change))
    with pytest.raises(UsageError, match=message):
        read_tables([path])


def test_an_empty_table_and_wrong_columns_are_refused(tmp_path: Path) -> None:
    empty = _write(tmp_path / "empty.csv", _frame(4).iloc[:0])
    with pytest.raises(UsageError, match=r"empty.csv: the table is empty"):
        read_tables([empty])
    other = _write(tmp_path / "other.csv", pd.DataFrame({"a": [1], "op": ["mm"]}))
    with pytest.raises(UsageError, match="has no column device, duration_us"):
        read_tables([other])


def test_two_devices_are_refused(tmp_path: Path) -> None:
    one = _write(tmp_path / "one.csv", _frame(4))
    two = _write(tmp_path / "two.csv", _frame(4).assign(device="Another"))
    with pytest.raises(UsageError, match=r"measured on .*, but .* fit one device at a time"):
        read_tables([one, two])


@pytest.mark.parametrize("column", ["rows", "duration_us", "median_us"])
def test_a_word_where_a_number_belongs_is_named(tmp_path: Path, column: str) -> None:
    frame = _frame(6).assign(op="relu", median_us=5.0).astype({column: object})
    frame.loc[2, column] = "many"
    with pytest.raises(UsageError, match=rf"t\.csv: row 2: {column} is 'many'; expected a number"):
        read_tables([_write(tmp_path / "t.csv", frame)])
