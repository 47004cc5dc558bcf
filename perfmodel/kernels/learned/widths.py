"""Aligned products on matrix units take no longer in a 16-bit type than in fp32.

The two were measured in other libraries, and short ones in fp32 hardly at all, so what was learned
of each may contradict it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfmodel.hardware import Device
from perfmodel.kernels.gpu.analysis import groups_of
from perfmodel.kernels.gpu.machine import matrix_flop_per_us
from perfmodel.kernels.gpu.memory import bound_us
from perfmodel.ops.rows import Ints, Rows
from perfmodel.ops.spec import OPS, Floats
from perfmodel.ops.vocabulary.matmul import MATMUL

NARROW, WIDE = ("fp16", "bf16"), "fp32"
_ALIGNED = 8.0
"""Elements of 16 bits in the 16 bytes that rows of operands start at multiples of."""


def in_question(rows: Rows, device: Device, kernel_us: Floats) -> Ints:
    """The rows that may be slower than in fp32: narrow, aligned, slower than fp32 could ever be."""
    fp32 = matrix_flop_per_us(device, [WIDE])[0]
    faster = {dtype for dtype in NARROW if matrix_flop_per_us(device, [dtype])[0] > fp32}
    narrow = np.flatnonzero([dtype in faster for dtype in rows.dtype])
    if not len(narrow):
        return narrow
    own = rows.take(narrow)
    is_slow = np.zeros(len(narrow), bool)
    for group in groups_of(widened(own)):
        if OPS[group.op].family == MATMUL:
            least = np.maximum(group.flop / fp32, bound_us(group.moved_bytes, device))
            least = np.maximum(least, device.kernel_floor_us)
            unaligned = np.mod(group.dims["n"], _ALIGNED) + np.mod(group.dims["k"], _ALIGNED)
            is_slow[group.index] = (unaligned == 0.0) & (kernel_us[narrow[group.index]] > least)
    return narrow[is_slow]


def widened(rows: Rows) -> Rows:
    """The same rows in fp32."""
    return replace(rows, dtype=(WIDE,) * len(rows))
