"""What a solid-state drive takes for random reads: sectors, channels, and how they queue.

A drive of latency t0 and at most X reads per second works on n = X t0 of them at a time. A read
that comes while Q - 1 others are there waits for the rest of those on its own channel, half a read
each: L = t0 + (Q - 1) / 2X, and never less than Q / X.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from perfmodel.errors import HardwareError
from perfmodel.hardware.parts import Storage
from perfmodel.ops.spec import Floats

BLOCK_BYTES = 4096
"""What read rates of drives are given for."""


def sector_bytes(drive: Storage) -> int:
    """What one read moves at least."""
    return drive.sector_bytes or BLOCK_BYTES


def moved_bytes(drive: Storage, row_bytes: ArrayLike) -> Floats:
    """Bytes that a read of one row moves: whole sectors, as few as can be."""
    sector = sector_bytes(drive)
    return np.asarray(np.ceil(np.asarray(row_bytes, np.float64) / sector) * sector)


def read_amplification(drive: Storage, row_bytes: ArrayLike) -> Floats:
    """Bytes moved over bytes wanted, 1 or more."""
    return np.asarray(moved_bytes(drive, row_bytes) / np.asarray(row_bytes, np.float64))


def reads_per_s(drive: Storage, row_bytes: ArrayLike) -> Floats:
    """The most random reads of rows per second: what the drive can start, and its bandwidth.

    Between one sector and 4 KiB a read takes a fixed part and one in proportion to its bytes.
    """
    moved = moved_bytes(drive, row_bytes)
    block_s = 1 / drive.read_iops
    least_s = 1 / drive.small_read_iops if drive.small_read_iops else block_s
    sector = sector_bytes(drive)
    share = np.clip((moved - sector) / max(BLOCK_BYTES - sector, 1), 0.0, 1.0)
    each_s = least_s + (block_s - least_s) * share
    return np.asarray(1 / np.maximum(each_s, moved / (drive.read_gb_per_s * 1e9)))


def alone_us(drive: Storage) -> float:
    """Latency of one read while no other is there; `HardwareError` where nobody said."""
    if drive.read_latency_us is None:
        raise HardwareError(f"{drive.name}: read_latency_us is missing: expected microseconds")
    return drive.read_latency_us


def read_latency_us(drive: Storage, in_flight: ArrayLike, row_bytes: ArrayLike) -> Floats:
    """Latency of a read while `in_flight`, it among them, are there all the time."""
    depth = np.maximum(np.asarray(in_flight, np.float64), 1.0)
    each_us = 1e6 / reads_per_s(drive, row_bytes)
    return np.asarray(np.maximum(alone_us(drive) + (depth - 1) * each_us / 2, depth * each_us))


def read_iops(drive: Storage, in_flight: ArrayLike, row_bytes: ArrayLike) -> Floats:
    """Reads per second with so many in flight."""
    depth = np.maximum(np.asarray(in_flight, np.float64), 1.0)
    return np.asarray(depth / read_latency_us(drive, depth, row_bytes) * 1e6)


def read_us(drive: Storage, rows: ArrayLike, row_bytes: ArrayLike, in_flight: ArrayLike) -> Floats:
    """A batch of `rows` reads, at most `in_flight` at a time: a first one's latency, and then as
    many as complete while the queue is full."""
    count = np.asarray(rows, np.float64)
    depth = np.minimum(np.maximum(count, 1.0), np.maximum(np.asarray(in_flight, np.float64), 1.0))
    first = read_latency_us(drive, depth, row_bytes)
    rest = np.maximum(count - depth, 0.0) / read_iops(drive, depth, row_bytes) * 1e6
    return np.asarray(np.where(count > 0, first + rest, 0.0))


def write_us(drive: Storage, rows: ArrayLike, row_bytes: ArrayLike, page_rows: ArrayLike) -> Floats:
    """Rows written at the drive's bandwidth, whole sectors of `page_rows` rows each."""
    together = np.maximum(np.asarray(page_rows, np.float64), 1.0)
    each = moved_bytes(drive, np.asarray(row_bytes, np.float64) * together) / together
    rate = drive.write_gb_per_s or drive.read_gb_per_s
    return np.asarray(np.asarray(rows, np.float64) * each / rate / 1e3)


def updates_per_day(drive: Storage, drives: int, update_bytes: float) -> float | None:
    """How often `update_bytes` can be written to all drives per day for the length of their
    warranty; None where the drive's endurance is not known."""
    if drive.drive_writes_per_day is None or drive.capacity_bytes is None:
        return None
    return drive.drive_writes_per_day * drive.capacity_bytes * drives / update_bytes


def least_hit_frac(drive: Storage, drives: int, rows_per_s: float, row_bytes: float) -> float:
    """The least share of `rows_per_s` that a cache must answer for the drives to keep up.

    Source: h >= 1 - n IOPS / rows per second (closed form).
    """
    return float(np.clip(1 - drives * reads_per_s(drive, row_bytes) / rows_per_s, 0.0, 1.0))
