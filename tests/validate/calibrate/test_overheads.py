"""Overhead profiles from traces."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny import Tiny

from perfmodel.errors import HardwareError, TraceError
from perfmodel.validate.calibrate.fit import fit


def _write(path: Path, gap_us: float) -> Path:
    """Two operators, `gap_us` apart; each launches one kernel 5 us after its start."""
    tiny = Tiny()
    tiny.step(1, 0, 200)
    for start in (10.0, 30.0 + gap_us):
        tiny.op("aten::mm", start, start + 20)
        tiny.launch(start + 5, start + 12, kernel=(start + 40, start + 50))
    path.write_bytes(tiny.content())
    return path


def test_samples_of_all_traces_count(tmp_path: Path) -> None:
    one, two = _write(tmp_path / "one.json", 4), _write(tmp_path / "two.json", 8)
    profile = fit("overheads", [one, two], tmp_path / "host.json", hosts=["epyc-7742"])
    assert profile.lookup("T1") == 6
    assert profile.lookup("T2", "aten::mm", "main") == 5
    assert profile.lookup("T4", "cudaLaunchKernel", "main") == 7
    assert profile.statistic("T1").count == 2
    assert profile.provenance.hosts == ("epyc-7742",)


def test_the_profilers_own_time_is_taken_off(tmp_path: Path) -> None:
    profile = fit(
        "overheads", _write(tmp_path / "one.json", 4), tmp_path / "o.json", profiler_us_per_event=2
    )
    assert profile.lookup("T1") == 2


def test_an_execution_trace_has_no_overheads(tmp_path: Path) -> None:
    path = tmp_path / "et.json"
    path.write_text('{"schema": "1.0.1", "pid": 1, "time": "", "start_ts": 1, "nodes": []}')
    with pytest.raises(TraceError, match=r"et\.json"):
        fit("overheads", path, tmp_path / "host.json")


def test_an_unknown_host_is_named_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(HardwareError, match=r"epyc-7741.*epyc-7742"):
        fit("overheads", tmp_path / "none.json", tmp_path / "o.json", hosts=["epyc-7741"])
