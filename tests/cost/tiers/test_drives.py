"""Drives: sectors, curves of latency and rate, endurance."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.cost.tiers.drives import (
    moved_bytes,
    read_amplification,
    read_iops,
    read_latency_us,
    read_us,
    reads_per_s,
    write_us,
)
from perfmodel.errors import HardwareError
from perfmodel.hardware import load
from perfmodel.hardware.parts import Storage


def nand() -> Storage:
    """100 us alone, 100,000 reads per second: ten channels."""
    return Storage(
        name="nand",
        read_gb_per_s=10.0,
        write_gb_per_s=1.0,
        read_iops=100_000,
        read_latency_us=100.0,
        drive_writes_per_day=1.0,
        capacity_bytes=1_000_000_000_000,
    )


def test_whole_sectors() -> None:
    assert moved_bytes(nand(), [1, 128, 4096, 4097]).tolist() == [4096, 4096, 4096, 8192]
    assert read_amplification(nand(), [128, 512]).tolist() == [32.0, 8.0]
    optane = replace(nand(), sector_bytes=512)
    assert read_amplification(optane, [128, 512]).tolist() == [4.0, 1.0]


def test_alone_and_full() -> None:
    assert read_latency_us(nand(), 1, 128) == pytest.approx(100.0)
    assert read_latency_us(nand(), 5, 128) == pytest.approx(120.0)
    assert read_iops(nand(), 1_000, 128) == pytest.approx(100_000)


def test_bandwidth_bounds_long_rows() -> None:
    assert reads_per_s(nand(), 1_000_000) == pytest.approx(10e9 / 1_003_520)


def test_small_reads_where_the_maker_gives_their_rate() -> None:
    drive = replace(nand(), sector_bytes=512, small_read_iops=400_000)
    assert reads_per_s(drive, 512) == pytest.approx(400_000)
    assert reads_per_s(drive, 4096) == pytest.approx(100_000)


def test_a_batch_is_its_first_reads_and_the_rest_at_the_full_rate() -> None:
    assert read_us(nand(), 0, 128, 16) == 0.0
    assert read_us(nand(), 1, 128, 16) == pytest.approx(100.0)
    assert read_us(nand(), 1_000, 128, 1_000) == pytest.approx(10_000.0)
    assert read_us(nand(), 1_000, 128, 1) == pytest.approx(100_000.0)


def test_writes_fill_pages_or_waste_them() -> None:
    assert write_us(nand(), 32, 128, 32) == pytest.approx(4.096)
    assert write_us(nand(), 32, 128, 1) == pytest.approx(32 * 4.096)


def test_latency_that_nobody_stated() -> None:
    with pytest.raises(HardwareError, match="read_latency_us"):
        read_latency_us(replace(nand(), read_latency_us=None), 1, 128)


@given(st.integers(1, 10_000), st.integers(1, 10_000), st.integers(1, 20_000))
@settings(max_examples=40)
def test_more_in_flight_is_never_slower(one: int, other: int, rows: int) -> None:
    low, high = sorted((one, other))
    deep, shallow = read_us(nand(), rows, 128, high), read_us(nand(), rows, 128, low)
    assert deep <= shallow * (1 + 1e-9)
    assert read_us(nand(), rows, 128, low) <= read_us(nand(), rows + 1, 128, low) * (1 + 1e-9)
    assert read_iops(nand(), high, 128) <= 100_000 * (1 + 1e-9)


@pytest.mark.parametrize("name", ["p3700", "p4800x", "micron-9100-max", "pm9a3", "pm1743", "p5510"])
def test_every_drive_of_the_catalogue_has_a_curve(name: str) -> None:
    drive = load(name)
    assert isinstance(drive, Storage)
    found = read_latency_us(drive, np.array([1, 4, 64]), 4096)
    assert (np.diff(found) > 0).all()
