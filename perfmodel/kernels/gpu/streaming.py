"""Physics of kernels that stream their operands: bytes, cache, and work too small to fill a GPU."""

from __future__ import annotations

import numpy as np

from perfmodel.hardware import Device
from perfmodel.kernels.gpu.analysis import Analysis, Group, by_group
from perfmodel.kernels.gpu.machine import (
    l2_bytes_per_us,
    special_per_us,
    stream_bytes_per_us,
    vector_flop_per_us,
)
from perfmodel.kernels.gpu.memory import bound_us, missed_share, transfer_us
from perfmodel.kernels.gpu.row_passes import ROW_KERNELS, read_again, resident_share
from perfmodel.ops.spec import Floats

START_US = 1.0
"""From a kernel's first block to its last byte, apart from moving them."""
SPECIAL_PER_ELEMENT = {
    "gelu": 4.0,
    "tanh": 3.0,
    "pow": 8.0,
    "pow_scalar": 2.0,
    "softmax": 2.0,
    "sigmoid": 2.0,
    "silu_and_mul": 2.0,
}
"""Exponentials, roots and divisions per element, in units of the special-function pipes."""


@by_group
def analyse(group: Group, device: Device) -> Analysis:
    """Bytes at the memory's or the cache's rate, beside the vector units'."""
    total = group.read_bytes + group.written_bytes
    passes, missed = _read_again(group, device)
    memory = transfer_us(total, device) + (
        missed * group.read_bytes * missed_share(total, device)
    ) / stream_bytes_per_us(device)
    cache = (total + passes * group.read_bytes) / l2_bytes_per_us(device)
    elements = group.written_bytes / 4.0
    special = SPECIAL_PER_ELEMENT.get(group.op, 0.0) * elements / special_per_us(device)
    compute = np.maximum(group.flop / vector_flop_per_us(device), special)
    bound = np.maximum(bound_us(total, device), group.flop / (2.0 * vector_flop_per_us(device)))
    busy = np.maximum(np.maximum(memory, cache), np.maximum(compute, bound))
    return Analysis(
        bound_us=bound,
        kernel_us=START_US + busy,
        shares={"compute": compute, "memory": memory, "cache": cache},
        flop=group.flop,
        read_bytes=group.read_bytes,
        written_bytes=group.written_bytes,
    )


def _read_again(group: Group, device: Device) -> tuple[Floats, Floats]:
    if group.op not in ROW_KERNELS:
        return np.zeros(len(group.index)), np.zeros(len(group.index))
    rows, cols = group.dims["rows"], group.dims["cols"]
    return read_again(group.op, resident_share(group.op, rows, cols, group.item_bytes, device))
