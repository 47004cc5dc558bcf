"""Rows of embedding tables on the move: how many, how long, and how fast they come."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.hardware import Device
from perfmodel.kernels.gpu.machine import hbm_bytes_per_us, l2_bytes_per_us
from perfmodel.ops.spec import Floats

START_US, EARLY_START_US = 4.5, 2.0
"""Arguments that tell where a table lies, one load after another. Source: V100 DLRM trace; nvprof
times of the kernels before FBGEMM on V100."""
LOOKUP_FRAC = 0.93
"""Share of the memory's peak that reads of whole rows at random reach. Source: Lin et al. 2022,
838 of 900 GB/s for 1.6 million rows of 256 bytes on V100."""
UPDATE_FRAC = 0.75
"""The same where each row is read and written. Source: Lin et al. 2022, V100 and TITAN Xp."""
_SCATTERED_FRAC = 0.54
"""Share of what the L2 delivers that reads of rows at random get. Source: A100 DLRM trace, 15.8
million rows of 286 bytes that lie in the L2."""


NARROW_BYTES = 2.0
"""Elements of fewer bytes are quantised."""
_UNPACK_BYTE, _UNPACK_NIBBLE, _UNPACK_FRAC = 1.5, 2.0, 0.7
"""Instructions of a lane per element to unpack it and to apply scale and offset; share of the peak
rate that they reach. assumed: bit operations and packed fp16 multiply-adds on pairs."""


@dataclass(frozen=True)
class RowUse:
    """What a batch does with rows, all tables together; one entry per row of the table."""

    tables: Floats
    lookups: Floats
    bags: Floats
    missed: Floats
    """Lookups whose row comes from memory."""
    distinct: Floats
    row_bytes: Floats
    """In whole sectors."""


def rows_memory_us(moved_bytes: Floats, reached_frac: float, device: Device) -> Floats:
    """Time of `moved_bytes` from and to memory, row by row."""
    return moved_bytes / (reached_frac * hbm_bytes_per_us(device))


def unpack_us(item_bytes: Floats, elements: Floats, device: Device) -> Floats:
    """Time in which the vector units turn so many stored elements of one byte or less into fp32."""
    each = np.where(
        item_bytes < 1.0, _UNPACK_NIBBLE, np.where(item_bytes < NARROW_BYTES, _UNPACK_BYTE, 0.0)
    )
    lanes_per_us = device.fp32_tflop_per_s * 1e6 / 2
    return np.asarray(each * elements / (_UNPACK_FRAC * lanes_per_us))


def rows_cache_us(moved_bytes: Floats, device: Device) -> Floats:
    """Time of `moved_bytes` through the L2, row by row."""
    return moved_bytes / (_SCATTERED_FRAC * l2_bytes_per_us(device))
