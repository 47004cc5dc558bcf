"""Physics of fused attention: two matrix products per tile of queries, scores kept on chip."""

from __future__ import annotations

import numpy as np

from perfmodel.hardware import Device
from perfmodel.kernels.gpu.analysis import Analysis, by_op_and_direction, merged
from perfmodel.kernels.gpu.machine import matrix_flop_per_us
from perfmodel.kernels.gpu.memory import bound_us, transfer_us
from perfmodel.ops.rows import Ints, Rows
from perfmodel.ops.spec import OPS

_QUERIES_PER_BLOCK = 128.0
_REACHED_FRAC = 0.62
"""Share of the peak that long fused attention reaches, softmax between the products."""
_HEAD_DIM = 128.0
_START_US = 3.0


def analyse(rows: Rows, device: Device) -> Analysis:
    """Both products at the matrix units' rate, in waves of blocks of queries."""
    parts = [
        (index, _of(rows, op, way, index, device)) for op, way, index in by_op_and_direction(rows)
    ]
    return merged(len(rows), parts)


def _of(rows: Rows, op: str, direction: str, index: Ints, device: Device) -> Analysis:
    spec, dims = OPS[op].of(direction), rows.dims_of(op, index)
    item = rows.item_bytes(index)
    flop = spec.flop(dims)
    read, written = spec.read_bytes(dims, item), spec.written_bytes(dims, item)
    peak = matrix_flop_per_us(device, [rows.dtype[row] for row in index.tolist()])
    blocks = dims["b"] * dims["heads"] * np.ceil(dims["s"] / _QUERIES_PER_BLOCK)
    waves = np.ceil(blocks / device.sm_count)
    wave_frac = blocks / (waves * device.sm_count)
    narrow = np.minimum(1.0, dims["head_dim"] / _HEAD_DIM) ** 0.5
    filled = np.minimum(1.0, dims["s"] / _QUERIES_PER_BLOCK)
    compute = flop / (peak * _REACHED_FRAC * narrow * filled * np.sqrt(wave_frac))
    memory = transfer_us(read + written, device)
    bound = np.maximum(flop / peak, bound_us(read + written, device))
    return Analysis(
        bound_us=bound,
        kernel_us=_START_US + np.maximum(np.maximum(compute, memory), bound),
        shares={"compute": compute, "memory": memory},
        flop=flop,
        read_bytes=read,
        written_bytes=written,
        features={"peak_us": flop / peak, "blocks_per_sm": waves, "wave_frac": wave_frac},
    )
