"""Sweeps: resumed, killed, refused; nothing lost and nothing twice."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from explore.conftest import MakeSpec

from perfmodel import read
from perfmodel.errors import PerfmodelError, UsageError
from perfmodel.explore import sweep
from perfmodel.explore.axes import Machines
from perfmodel.explore.spec import ERROR, POINT
from perfmodel.prediction import predict

ALL = ["step_us", "samples_per_s", "cost_usd_per_million", "energy_j_per_sample", "power_w"]


def test_every_point_is_what_predict_says(spec: MakeSpec, trace: Path, tmp_path: Path) -> None:
    wanted = spec(f"batch = 64\nobjective = {ALL}\nchunk = 4")
    found = sweep(wanted, tmp_path / "results")
    assert found.frame[POINT].tolist() == list(range(15))
    assert found.failed == 0
    machines = Machines(wanted.space.values, base="dgx-1")
    for _, row in found.frame.iloc[[0, 7, 14]].iterrows():
        machine = machines.at({axis: row[axis] for axis in found.axes})
        alone = predict(read(trace), hardware=[machine.node]).results[0]
        assert row["step_us"] == pytest.approx(alone.step_us, rel=1e-5)
        assert row["samples_per_s"] == pytest.approx(64e6 / alone.step_us, rel=1e-5)
        assert row["energy_j_per_sample"] == pytest.approx(row["power_w"] / row["samples_per_s"])


def part(folder: Path, number: int) -> Path:
    return folder / f"part-{number:08d}.parquet"


def test_a_sweep_goes_on_where_it_was(spec: MakeSpec, tmp_path: Path) -> None:
    wanted = spec("chunk = 4")
    whole = sweep(wanted, tmp_path / "whole").frame
    folder = tmp_path / "some"
    sweep(wanted, folder)
    stamps = {path.name: path.stat().st_mtime_ns for path in folder.glob("part-*")}
    part(folder, 1).unlink()
    told: list[tuple[str, int, int]] = []
    again = sweep(wanted, folder, begin=lambda *each: told.append(each)).frame
    pd.testing.assert_frame_equal(again, whole)
    assert [done for _, done, _ in told] == [11, 15], "what was there, then the part that was not"
    for path in folder.glob("part-*"):
        assert (path.stat().st_mtime_ns == stamps[path.name]) == ("00000001" not in path.name)


@pytest.mark.slow
def test_killed_and_started_again(spec: MakeSpec, tmp_path: Path) -> None:
    axes = "device.hbm_gb_per_s = { low = 600, high = 2400, steps = 400 }"
    wanted = spec("chunk = 1", axes)
    folder = tmp_path / "killed"
    line = [sys.executable, "-m", "perfmodel", "sweep", wanted.where, "-o", str(folder)]
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL)
    while len(list(folder.glob("part-*.parquet"))) < 3 and process.poll() is None:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    done = len(list(folder.glob("part-*.parquet")))
    assert 3 <= done < 400
    found = sweep(wanted, folder).frame
    assert found[POINT].tolist() == list(range(400))
    pd.testing.assert_frame_equal(found, sweep(wanted, tmp_path / "whole").frame)


def test_results_of_another_sweep_are_left_alone(spec: MakeSpec, tmp_path: Path) -> None:
    folder = tmp_path / "results"
    sweep(spec(), folder)
    before = sorted((path.name, path.stat().st_mtime_ns) for path in folder.iterdir())
    other = spec(axes="device.hbm_gb_per_s = [1000]", name="other.toml")
    with pytest.raises(UsageError, match="results of another sweep"):
        sweep(other, folder)
    assert before == sorted((path.name, path.stat().st_mtime_ns) for path in folder.iterdir())
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(UsageError, match="is not empty"):
        sweep(other, tmp_path / "mine")
    with pytest.raises(UsageError, match="is a file"):
        sweep(other, tmp_path / "spec.toml")


def test_a_changed_input_is_another_sweep(spec: MakeSpec, trace: Path, tmp_path: Path) -> None:
    wanted = spec()
    sweep(wanted, tmp_path / "results")
    trace.write_bytes(trace.read_bytes() + b"\0" * 8)
    with pytest.raises(UsageError, match="results of another sweep"):
        sweep(wanted, tmp_path / "results")


def test_a_changed_machine_file_is_another_sweep(spec: MakeSpec, tmp_path: Path) -> None:
    machine = tmp_path / "mine.toml"
    machine.write_text('extends = "v100-sxm2-32gb"\nhbm_gb_per_s = 800')
    wanted = spec(axes=f'hardware = ["t4", "{machine}"]')
    sweep(wanted, tmp_path / "results")
    machine.write_text('extends = "v100-sxm2-32gb"\nhbm_gb_per_s = 400')
    with pytest.raises(UsageError, match="results of another sweep"):
        sweep(wanted, tmp_path / "results")


def test_a_full_disk_loses_nothing(
    spec: MakeSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = spec("chunk = 4")
    usual, calls = os.fsync, []

    def full(handle: int) -> None:
        calls.append(handle)
        if len(calls) > 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        usual(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(PerfmodelError, match="No space left on device"):
        sweep(wanted, tmp_path / "results")
    names = sorted(path.name for path in (tmp_path / "results").iterdir())
    assert [name[:13] for name in names] == ["_sweep.json", "part-00000000", "part-00000001"]
    monkeypatch.undo()
    assert sweep(wanted, tmp_path / "results").frame[POINT].tolist() == list(range(15))


@pytest.mark.parametrize("damage", ["cut", "of another number"])
def test_a_damaged_part_is_named(spec: MakeSpec, tmp_path: Path, damage: str) -> None:
    wanted, folder = spec("chunk = 4"), tmp_path / "results"
    sweep(wanted, folder)
    second = part(folder, 2)
    second.write_bytes(b"PAR1" if damage == "cut" else part(folder, 1).read_bytes())
    with pytest.raises(PerfmodelError, match=rf"{second.name}: damaged: delete it"):
        sweep(wanted, folder)


def test_points_that_cannot_be_say_why_and_the_others_stay(spec: MakeSpec, tmp_path: Path) -> None:
    axes = """
    device.l2_bytes = [6e6, 3e7]
    device.hbm_bytes = [1e7, 3.2e10]
    host.single_thread_ratio = [1, 2]
    """
    found = sweep(spec(axes=axes), tmp_path / "results")
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
def test_axes_that_name_nothing(
    spec: MakeSpec, tmp_path: Path, text: str, axes: str, expected: str
) -> None:
    with pytest.raises(PerfmodelError, match=expected) as error:
        sweep(spec(text, axes), tmp_path / "results")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "results").exists(), "refused before anything is written"
