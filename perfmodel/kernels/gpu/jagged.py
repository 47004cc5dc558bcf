"""Physics of work on keyed jagged tensors: a warp walks a segment, load after load."""

from __future__ import annotations

import numpy as np

from perfmodel.hardware import Device
from perfmodel.kernels.gpu.analysis import Analysis, Group, by_group
from perfmodel.kernels.gpu.machine import stream_bytes_per_us
from perfmodel.kernels.gpu.memory import bound_us
from perfmodel.ops.spec import Floats

_START_US = 2.0
_WARPS_PER_SM = 64.0
_LANES = 32.0
_CHAIN_US = {"jagged_permute": 2.6, "bounds_check": 4.1, "linearize_index": 12.2}
"""What one warp takes: loads that wait for one another. `linearize_index`: 32 segments in turn.

Source: the A100 DLRM trace, the longest kernel of each; of `linearize_index` the shortest ones
there and in the V100 trace.
"""
_USUAL_CHAIN_US = 2.6
_SECTOR_BYTES = 32.0
_STREAMS = {"linearize_index": 5.0, "bounds_check": 1.0, "jagged_permute": 3.0}
"""Sectors per segment beside its bytes: a segment starts and ends amid a sector, and a sector
written in part is read first."""
_USUAL_STREAMS = 3.0
_SEGMENTS_PER_WARP = {"linearize_index": 32.0}
_LONGEST = 2.5
"""Longest segment over the mean one, where nothing is said of it."""


@by_group
def analyse(group: Group, device: Device) -> Analysis:
    """Bytes in pieces of sectors, against waves of warps that wait for their loads."""
    dims, op = group.dims, group.op
    segments = np.minimum(dims["segments"], dims["elements"])
    streams = _STREAMS.get(op, _USUAL_STREAMS)
    fragments = _SECTOR_BYTES * streams * segments
    memory = (group.moved_bytes + fragments) / stream_bytes_per_us(device)
    warps = segments / _SEGMENTS_PER_WARP.get(op, 1.0)
    waves = np.maximum(1.0, warps / (device.sm_count * _WARPS_PER_SM))
    latency = waves * _CHAIN_US.get(op, _USUAL_CHAIN_US) * _rounds(dims["elements"] / segments)
    bound = bound_us(group.moved_bytes, device)
    return Analysis(
        bound_us=bound,
        kernel_us=np.maximum.reduce([memory, latency, bound]) + _START_US,
        shares={"memory": memory, "latency": latency + _START_US},
        flop=group.flop,
        read_bytes=group.read_bytes,
        written_bytes=group.written_bytes,
    )


def _rounds(mean_length: Floats) -> Floats:
    """How often a warp goes over its longest segment, `_LANES` values at a time."""
    return np.maximum(1.0, _LONGEST * mean_length / _LANES)
