"""A CPU of which nothing was measured answers by the one that was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pandas as pd
import pytest

import perfmodel
from perfmodel.cost.cpu.parameters import reference_cpu
from perfmodel.hardware import Device, device
from perfmodel.validate.calibrate.steps import read_steps
from perfmodel.validate.evaluate.tables import evaluate_steps

ROOT = Path(__file__).resolve().parents[3]
ROW = {"op": "add", "dtype": "fp32", "direction": "fwd"}
LARGE = {**ROW, "rows": 7_000.0, "cols": 1_000.0}
PRODUCT = {"op": "mm", "dtype": "fp32", "direction": "fwd", "m": 2048.0, "n": 2048.0, "k": 4096.0}


def _unmeasured(**figures: object) -> Device:
    return replace(reference_cpu(), name="like it", calibration=MappingProxyType({}), **figures)


def _one(row: dict[str, object], device: Device) -> pd.Series:
    return perfmodel.durations(pd.DataFrame([row]), device).iloc[0]


@pytest.mark.parametrize("row", [{**ROW, "rows": 8.0, "cols": 64.0}, LARGE])
def test_with_the_same_figures_it_takes_as_long_within_a_wider_interval(row: dict) -> None:
    known, like = _one(row, reference_cpu()), _one(row, _unmeasured())
    assert like["duration_us"] == pytest.approx(known["duration_us"], rel=0.25)
    assert like["high_us"] / like["low_us"] > 2.0 * known["high_us"] / known["low_us"]
    assert known["source"] == "calibration of cpu-epyc"
    assert like["source"] == "calibration of cpu-epyc, by figures of both"


def test_times_go_with_a_threads_speed_rates_with_the_figures() -> None:
    """No usual host: a thread is as fast as its clock; at twice all figures everything halves."""
    once = _unmeasured(usual_host=None, l2_gb_per_s=80.0, llc_gb_per_s=48.0)
    caches = ("l2_gb_per_s", "llc_gb_per_s")
    names = ("base_mhz", "fp32_tflop_per_s", "hbm_gb_per_s", *caches)
    twice = replace(once, **{name: 2 * getattr(once, name) for name in names})
    for row in ({**ROW, "rows": 8.0, "cols": 64.0}, LARGE, PRODUCT):
        before, after = (_one(row, each)["duration_us"] for each in (once, twice))
        assert after == pytest.approx(before / 2, rel=0.02)


def test_a_calibration_of_one_family_is_its_own_over_what_the_reference_has() -> None:
    own = replace(_unmeasured(), calibration=MappingProxyType({"vector": {"floor_us": 100.0}}))
    assert _one({**ROW, "rows": 8.0, "cols": 64.0}, own)["source"] == "calibration of like it"
    (_, more), (_, less) = (
        (each, _one({**ROW, "rows": 8.0, "cols": 64.0}, each)["duration_us"])
        for each in (own, _unmeasured())
    )
    assert more > less
    assert _one(PRODUCT, own)["source"] == "calibration of cpu-epyc, by figures of both"


def test_matrix_units_multiply_bf16_and_vectors_int8() -> None:
    """AMX has 32 times the rate of fp32 of which 0.18 is reached; FBGEMM's int8 has VNNI's 4."""
    times = {
        dtype: _one({**PRODUCT, "op": "linear", "dtype": dtype}, device("xeon-platinum-8480c"))
        for dtype in ("fp32", "bf16", "int8")
    }
    fp32, bf16, int8 = (times[dtype]["duration_us"] for dtype in ("fp32", "bf16", "int8"))
    assert fp32 / bf16 == pytest.approx(0.18 * 32, rel=0.3)
    assert fp32 / int8 == pytest.approx(4.0, rel=0.3)
    zen4 = [_one({**PRODUCT, "dtype": dtype}, device("epyc-9654")) for dtype in ("fp32", "bf16")]
    assert zen4[0]["duration_us"] / zen4[1]["duration_us"] == pytest.approx(2.0, rel=0.2)


def test_steps_of_a_xeon_predicted_before_they_were_measured() -> None:
    """32 DLRMs on one thread of it: 21 % off, all within."""
    table = ROOT / "traces" / "cpu_xeon"
    found = evaluate_steps(read_steps(table / "truth.csv"), device(table / "xeon.toml"))
    assert found["summary"]["median_pct"] < 26
    assert all(row["within"] for row in found.rows)
    assert found.warnings == ["cpu-xeon was not calibrated: scaled from another CPU"]


def test_predictions_say_that_a_cpu_was_not_calibrated() -> None:
    said = {
        name: "was not calibrated" in " ".join(map(str, found.warnings))
        for name in ("epyc-7742", "cpu-epyc")
        for found in [perfmodel.predict("criteo-kaggle", hardware=[name])]
    }
    assert said == {"epyc-7742": True, "cpu-epyc": False}
