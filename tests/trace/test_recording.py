"""Recordings that lost kernels, or whose clocks of host and device do not agree."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import Tiny

from perfmodel.errors import TraceError
from perfmodel.trace.columns import RankTrace
from perfmodel.trace.read import read
from perfmodel.trace.recording import checked_recording


def recorded(
    device_late_us: float = 0.0, kernel_us: float = 50.0, synchronises: bool = True
) -> Tiny:
    """Four kernels, each 10 us after its launch call, and a call that waits for them."""
    t = Tiny()
    t.step(1, 0, 1000)
    for start in (10, 110, 210, 310):
        begin = start + 10 + device_late_us
        t.launch(start, start + 5, kernel=(begin, begin + kernel_us))
    if synchronises:
        t.call("cudaDeviceSynchronize", 330, 380)
    return t


def device_starts_us(rank: RankTrace) -> list[float]:
    """After the first event of the host."""
    host_us = rank.start_us[~rank.is_device].min()
    return (rank.start_us[rank.is_device] - host_us).tolist()


def test_a_sound_recording_is_left_alone() -> None:
    rank = recorded().rank_trace()
    assert checked_recording(rank) == (rank, [])


@given(st.sampled_from([-1, 1]), st.floats(200, 1e7))
def test_a_device_clock_that_is_off_is_set_right(side: int, late_us: float) -> None:
    rank, faults = checked_recording(recorded(side * late_us).rank_trace())
    assert device_starts_us(rank) == pytest.approx([20, 120, 220, 320], abs=0.01)
    assert (np.diff(rank.start_us) >= 0).all()
    (fault,) = faults
    assert ("late" if side > 0 else "early") in fault
    assert f"{late_us / 1e3:.3f}"[:4] in fault


def test_a_clock_that_drifts_is_said_and_not_repaired() -> None:
    t = recorded()
    t.launch(400, 405, kernel=(1410, 1460))
    t.call("cudaDeviceSynchronize", 410, 470)
    rank = t.rank_trace()
    same, (fault,) = checked_recording(rank)
    assert same is rank
    assert fault.startswith("1 of 2 calls that wait for the device return before")
    assert "990.0 us" in fault


def test_late_operations_without_a_call_that_waits_are_said() -> None:
    rank = recorded(2e5, synchronises=False).rank_trace()
    same, (fault,) = checked_recording(rank)
    assert same is rank
    assert fault.startswith("every device operation begins 200.0 ms or more after its launch")


def test_waiting_for_a_copy_to_the_host_tells_the_clocks_too() -> None:
    t = Tiny()
    t.copy(10, 15, copy=(5020, 5030), name="Memcpy DtoH (Device -> Pageable)")
    t.call("cudaStreamSynchronize", 16, 40)
    rank, (fault,) = checked_recording(t.rank_trace())
    assert "5.000 ms late" in fault
    assert device_starts_us(rank) == pytest.approx([10])


def test_launches_without_kernels_are_counted() -> None:
    t = recorded()
    t.call("cudaLaunchKernel", 50, 55)  # before the last kernel that was recorded
    t.call("cudaLaunchKernel", 500, 505)  # after it: the recording may have ended
    _, (fault,) = checked_recording(t.rank_trace())
    assert fault.startswith("1 of 5 kernel launches have no kernel")


def test_a_duration_beyond_the_trace_is_said_and_moves_no_clock() -> None:
    t = recorded()
    t.launch(320, 325, kernel=(380, 1e15))
    rank, (fault,) = checked_recording(t.rank_trace())
    assert fault.startswith("1 device operations cannot have lasted as long as the file says")
    assert rank.duration_us[rank.is_device].tolist() == [50] * 5


def test_strict_refuses_what_is_said(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(recorded(1e6).content())
    assert "device's clock" in read(path).warnings[0]
    with pytest.raises(TraceError, match=r"device's clock is 1000\.000 ms late"):
        read(path, strict=True)


@pytest.mark.slow
def test_real_recordings_fit_their_books_and_are_sound(reference: Path) -> None:
    paths = [*reference.glob("traces/*/*.json.gz"), *reference.glob("traces_2/*/*.json.gz")]
    assert len(paths) > 20
    for path in paths:
        for rank in read(path).ranks:
            if path.parts[-3] == "traces_2" or path.parts[-2] in ("dlrm_v100x8", "inference"):
                assert checked_recording(rank) == (rank, []), path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("dlrm_gpu_clock_plus_1s", "clock is 999.9"),
        ("gpu_clock_plus_1s", "clock is 1000.0"),
        ("dlrm_half_kernels_lost", "126 of 251 kernel launches"),
        ("bert_last_kernel_1e15us", "cannot have lasted as long"),
        ("last_kernel_1e15us", "cannot have lasted as long"),
    ],
)
def test_recordings_that_went_wrong(reference: Path, name: str, word: str) -> None:
    warnings = read(reference / "hostile" / f"{name}.json.gz").warnings
    assert any(word in warning for warning in warnings)
