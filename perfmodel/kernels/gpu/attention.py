"""Physics of fused attention: two matrix products per tile of queries, scores kept on chip."""

from __future__ import annotations

import numpy as np

from perfmodel.hardware import Device
from perfmodel.kernels.gpu.analysis import Analysis, Group, by_group
from perfmodel.kernels.gpu.machine import matrix_flop_per_us
from perfmodel.kernels.gpu.memory import bound_us, transfer_us

_QUERIES_PER_BLOCK = 128.0
_REACHED_FRAC = {"rocm": 0.2}
_USUAL_REACHED_FRAC = 0.62
"""Share of the peak that long fused attention reaches, softmax between the products. Source: `rocm`
of one shape on MI300X (Qwen trace, not held out)."""
_HEAD_DIM = 128.0
_START_US = 3.0


@by_group
def analyse(group: Group, device: Device) -> Analysis:
    """Both products at the matrix units' rate, in waves of blocks of queries."""
    dims, flop = group.dims, group.flop
    peak = matrix_flop_per_us(device, group.dtypes)
    blocks = dims["b"] * dims["heads"] * np.ceil(dims["s"] / _QUERIES_PER_BLOCK)
    waves = np.ceil(blocks / device.sm_count)
    wave_frac = blocks / (waves * device.sm_count)
    narrow = np.minimum(1.0, dims["head_dim"] / _HEAD_DIM) ** 0.5
    filled = np.minimum(1.0, dims["s"] / _QUERIES_PER_BLOCK)
    reached = _REACHED_FRAC.get(device.target, _USUAL_REACHED_FRAC)
    compute = flop / (peak * reached * narrow * filled * np.sqrt(wave_frac))
    memory = transfer_us(group.moved_bytes, device)
    bound = np.maximum(flop / peak, bound_us(group.moved_bytes, device))
    return Analysis(
        bound_us=bound,
        kernel_us=_START_US + np.maximum(np.maximum(compute, memory), bound),
        shares={"compute": compute, "memory": memory},
        flop=flop,
        read_bytes=group.read_bytes,
        written_bytes=group.written_bytes,
        features={"peak_us": flop / peak, "blocks_per_sm": waves, "wave_frac": wave_frac},
    )
