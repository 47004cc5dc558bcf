"""Sweeps of a trace: every point as it is alone, or why it has no figures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from explore.conftest import MakeSpec

from perfmodel import read
from perfmodel.errors import PerfmodelError
from perfmodel.explore import load_spec, sweep
from perfmodel.explore.axes import Machines
from perfmodel.explore.result import ERROR, POINT
from perfmodel.hardware import load
from perfmodel.prediction import predict

ALL = ["step_us", "samples_per_s", "cost_usd_per_million", "energy_j_per_sample", "power_w"]


def test_every_point_is_what_predict_says(spec: MakeSpec, trace: Path) -> None:
    wanted = spec(f"batch = 64\nobjective = {ALL}")
    found = sweep(wanted)
    assert found.frame[POINT].tolist() == list(range(15))
    assert found.failed == 0
    machines = Machines(wanted.points.values, base="dgx-1")
    for _, row in found.frame.iloc[[0, 7, 14]].iterrows():
        machine = machines.at({axis: row[axis] for axis in found.axes})
        alone = predict(read(trace), hardware=[machine.node]).results[0]
        assert row["step_us"] == pytest.approx(alone.step_us, rel=1e-5)
        assert alone.cost is not None
        assert alone.cost["copies"] == 8
        assert row["samples_per_s"] == pytest.approx(8 * 64e6 / alone.step_us, rel=1e-5)
        usd = alone.cost["usd_per_million"] / 64
        assert row["cost_usd_per_million"] == pytest.approx(usd, rel=0.01)
        assert row["energy_j_per_sample"] == pytest.approx(row["power_w"] / row["samples_per_s"])


def test_a_trace_is_named_from_here_or_itself(
    spec: MakeSpec, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trace.parent)
    axes = {"host.single_thread_ratio": (0.5, 1.0, 2.0)}
    named = load_spec({"trace": trace.name, "hardware": "dgx-1", "axes": axes})
    itself = load_spec({"trace": read(trace), "hardware": load("dgx-1"), "axes": axes})
    theirs = sweep(spec(axes="host.single_thread_ratio = [0.5, 1.0, 2.0]")).frame
    for each in (named, itself):
        pd.testing.assert_frame_equal(sweep(each).frame, theirs)
    assert (named.input, itself.input) == (trace.name, str(trace))


@pytest.mark.slow
def test_workers_give_the_same_rows(spec: MakeSpec) -> None:
    wanted = spec()
    told: list[tuple[str, int, int]] = []
    spread = sweep(wanted, workers=2, begin=lambda *each: told.append(each)).frame
    pd.testing.assert_frame_equal(spread, sweep(wanted).frame)
    assert [done for _, done, _ in told] == [0, 15]


def test_points_that_cannot_be_say_why_and_the_others_stay(spec: MakeSpec) -> None:
    axes = """
    device.l2_bytes = [6e6, 3e7]
    device.hbm_bytes = [1e7, 3.2e10]
    host.single_thread_ratio = [1, 2]
    """
    found = sweep(spec(axes=axes))
    assert found.failed == 2
    bad = found.frame.iloc[4]
    assert "expected l2_bytes to be smaller than hbm_bytes" in bad[ERROR]
    assert np.isnan(bad["step_us"])
    assert found.frame["step_us"].notna().sum() == 6
    assert "2 of 8 points have no figures" in found.warnings[0]


@pytest.mark.parametrize(
    ("text", "axes", "expected"),
    [
        ("", "speed = [1]", "axis speed names nothing"),
        ("", "workload.batch = [1]", "axis workload.batch names nothing that a trace"),
        ("", "device.hbm = [1000]", "unknown key hbm of a device; expected: hbm_bytes"),
        ("", "storage.read_iops = [1e6]", "has none: name one too"),
        ("", "device.hbm_gb_per_s = [-5]", "hbm_gb_per_s: expected a number from .* got -5"),
        ("", 'hardware = ["no-such-gpu"]', "unknown hardware 'no-such-gpu'"),
        ('objective = ["energy"]', "nodes = [1]", "needs batch"),
        (
            "batch = 8\nobjective = ['cost']\n[prices]\nusd = 3",
            "nodes = [1]",
            "prices: unknown key usd; expected: usd_per_hour",
        ),
    ],
)
def test_axes_that_name_nothing(spec: MakeSpec, text: str, axes: str, expected: str) -> None:
    with pytest.raises(PerfmodelError, match=expected) as error:
        sweep(spec(text, axes))
    assert "\n" not in str(error.value)
