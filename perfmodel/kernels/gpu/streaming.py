"""Physics of kernels that stream their operands: bytes, cache, and work too small to fill a GPU."""

from __future__ import annotations

import numpy as np

from perfmodel.hardware import Device
from perfmodel.kernels.gpu.analysis import Analysis, Group, by_group
from perfmodel.kernels.gpu.machine import l2_bytes_per_us, special_per_us, vector_flop_per_us
from perfmodel.kernels.gpu.memory import bound_us, transfer_us
from perfmodel.ops.spec import Floats

START_US = 1.0
"""From a kernel's first block to its last byte, apart from moving them."""
ROW_BYTES_ON_CHIP = 16384
"""Longest row that one block keeps in registers or shared memory between passes."""

EXTRA_READS = {"softmax": 1.0, "layer_norm": 1.0, "log_softmax": 1.0, "rms_norm": 1.0}
"""How often ops that reduce a row before they write it read the row again."""
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
    cols = group.dims.get("cols")
    return streamed(
        group.op,
        group.flop,
        group.read_bytes,
        group.written_bytes,
        device,
        row_bytes=None if cols is None else cols * group.item_bytes,
    )


def streamed(
    op: str,
    flop: Floats,
    read_bytes: Floats,
    written_bytes: Floats,
    device: Device,
    *,
    row_bytes: Floats | None = None,
) -> Analysis:
    """The analysis of kernels that read and write each byte once, some rows of them twice."""
    total = read_bytes + written_bytes
    memory = transfer_us(total, device)
    cache = total / l2_bytes_per_us(device)
    again = EXTRA_READS.get(op)
    if again is not None and row_bytes is not None:
        spilled = np.clip(row_bytes / ROW_BYTES_ON_CHIP, 0.0, 1.0)
        extra = again * spilled * read_bytes
        memory = memory + transfer_us(extra, device)
        cache = cache + extra / l2_bytes_per_us(device)
    elements = written_bytes / 4.0
    special = SPECIAL_PER_ELEMENT.get(op, 0.0) * elements / special_per_us(device)
    compute = np.maximum(flop / vector_flop_per_us(device), special)
    bound = np.maximum(bound_us(total, device), flop / (2.0 * vector_flop_per_us(device)))
    return Analysis(
        bound_us=bound,
        kernel_us=START_US + np.maximum(np.maximum(memory, compute), bound),
        shares={"compute": compute, "memory": memory, "cache": cache},
        flop=flop,
        read_bytes=read_bytes,
        written_bytes=written_bytes,
    )
