"""Rows of embedding tables on the move: how many, how long, and how fast they come."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.hardware import Device
from perfmodel.kernels.gpu.machine import hbm_bytes_per_us, issued_per_us, l2_bytes_per_us
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
_PASS_BYTES, _PASS_LANES = 128.0, 32.0
"""Stored bytes that a warp adds up at a time, a word a lane; rows take 1, 2, 4, 8, … such passes.
Source: pytorch/FBGEMM, codegen/inference/embedding_forward_quantized_split_nbit_*: read."""
_ROW_INSTRUCTIONS, _BYTE_INSTRUCTIONS, _NIBBLE_INSTRUCTIONS = 8.0, 24.0, 38.0
"""Of a warp, per row and per pass of int8 and int4: asking for the row, masks, halves, scale and
offset, sums in fp32. Source: a sketch of those kernels as nvcc 13.0 compiles it for sm_80 and
sm_90: 33, 58 and 102 per row of 1, 2 and 4 passes of int8, 44 and 84 of 1 and 2 of int4."""
_ISSUED_FRAC = 0.7
"""Share of the slots in which warps find an instruction to issue. assumed"""


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


def unpack_us(item_bytes: Floats, lookups: Floats, row_bytes: Floats, device: Device) -> Floats:
    """Time to issue what turns so many rows of elements of one byte or less into fp32 sums."""
    of_pass = np.where(item_bytes < 1.0, _NIBBLE_INSTRUCTIONS, _BYTE_INSTRUCTIONS)
    passes = np.exp2(np.ceil(np.log2(np.maximum(row_bytes / _PASS_BYTES, 1.0))))
    each = np.where(item_bytes < NARROW_BYTES, _ROW_INSTRUCTIONS + of_pass * passes, 0.0)
    return np.asarray(lookups * each * _PASS_LANES / (_ISSUED_FRAC * issued_per_us(device)))


def rows_cache_us(moved_bytes: Floats, device: Device) -> Floats:
    """Time of `moved_bytes` through the L2, row by row."""
    return moved_bytes / (_SCATTERED_FRAC * l2_bytes_per_us(device))
