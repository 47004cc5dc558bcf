"""Physics of pooling: bytes, against threads that look at each element of their windows."""

from __future__ import annotations

import numpy as np

from perfmodel.hardware import Device
from perfmodel.kernels.gpu.analysis import Analysis, Group, by_group
from perfmodel.kernels.gpu.machine import stream_bytes_per_us
from perfmodel.kernels.gpu.memory import bound_us

_START_US = 2.0
_CLOCKS = {"fwd": 5.0, "bwd": 3.2}
"""Of a multiprocessor, per output forward and per input backward, for windows of 3 x 3: indices
and comparisons. Source: ResNet traces on V100 and MI300X (both; held out nowhere)."""
_WINDOW = 9.0


@by_group
def analyse(group: Group, device: Device) -> Analysis:
    """The larger of bytes at the memory's rate and work on the windows."""
    dims = group.dims
    memory = group.moved_bytes / stream_bytes_per_us(device)
    threads = dims["outputs"] if group.direction == "fwd" else dims["elements"]
    windows = np.maximum(1.0, dims["kernel_size"] ** 2) / _WINDOW
    clocks = _CLOCKS[group.direction] * threads * (windows if group.direction == "fwd" else 1.0)
    compute = clocks / (device.sm_count * device.boost_mhz)
    bound = bound_us(group.moved_bytes, device)
    return Analysis(
        bound_us=bound,
        kernel_us=np.maximum.reduce([memory, compute, bound]) + _START_US,
        shares={"memory": memory, "compute": compute},
        flop=group.flop,
        read_bytes=group.read_bytes,
        written_bytes=group.written_bytes,
    )
