"""Physics of batch normalisation: a block goes over all values of one channel, more than once."""

from __future__ import annotations

import numpy as np

from perfmodel.hardware import Device
from perfmodel.kernels.gpu.analysis import Analysis, Group, by_group
from perfmodel.kernels.gpu.machine import stream_bytes_per_us
from perfmodel.kernels.gpu.memory import bound_us
from perfmodel.ops.spec import Dims, Floats

_START_US = 3.0
_BLOCKS_PER_SM = 4.0
"""Blocks of 512 threads at once."""
_SM_SHARE = 1.1
"""What a block alone draws from memory, over its multiprocessor's even share. Source: V100
ResNet-50 trace, 64 channels on 80 multiprocessors."""
_PASSES = {"fwd": (2.0, 1.0), "bwd": (4.0, 1.0)}
"""How often a channel's values are read and written; the gradient is as large as the input."""
_ON_CHIP_PASSES = {"fwd": (1.0, 1.0), "bwd": (2.0, 1.0)}
_ON_CHIP_BYTES = 8192.0
"""A channel that one block keeps between its passes. Source: cuDNN's kernels in that trace, 1,568
values kept, 6,272 not."""
_BLOCK_US = 10.0
"""A block's two sums over its threads, and the loads before and after. Source: as above."""
_NATIVE_US = {"fwd": (5.0, 1.08e-3), "bwd": (4.0, 2.9e-3)}
"""PyTorch's own kernels: a block, and each value of its channel, load after load. Source: MI300X
ResNet trace, 490 to 125,000 values per channel (all of them; held out nowhere)."""
_NATIVE_LAUNCH_US = 4.5
"""Running statistics, in a kernel of its own; the normalisation is the other."""


@by_group
def analyse(group: Group, device: Device) -> Analysis:
    """Passes over the channels at the memory's rate, against blocks that wait for their loads."""
    dims, way = group.dims, group.direction
    has_statistics = dims["statistics"] > 0
    native = (dims["native"] > 0) & has_statistics
    values = dims["rows"] * dims["cols"] * group.item_bytes
    kept = dims["rows"] * group.item_bytes <= _ON_CHIP_BYTES
    (reads, writes), (kept_reads, kept_writes) = _PASSES[way], _ON_CHIP_PASSES[way]
    passes = np.where(kept, kept_reads + kept_writes, reads + writes)
    share = np.minimum(1.0, _SM_SHARE * dims["cols"] / device.sm_count)
    rate = stream_bytes_per_us(device)
    memory = np.where(
        has_statistics & ~native, passes * values / (rate * share), group.moved_bytes / rate
    )
    library = np.where(has_statistics, _BLOCK_US, 0.0) * _waves(dims, device)
    latency = np.where(native, _native_us(dims, way, device), library)
    bound = bound_us(group.moved_bytes, device)
    together = np.where(native & (way == "fwd"), memory + latency, np.maximum(memory, latency))
    return Analysis(
        bound_us=bound,
        kernel_us=np.maximum(together, bound) + _START_US,
        shares={"memory": memory, "latency": latency + _START_US},
        flop=group.flop,
        read_bytes=group.read_bytes,
        written_bytes=group.written_bytes,
    )


def _native_us(dims: Dims, direction: str, device: Device) -> Floats:
    """Statistics and their update before the normalisation; backward all in one kernel."""
    block_us, value_us = _NATIVE_US[direction]
    each = (block_us + value_us * dims["rows"]) * _waves(dims, device)
    return each + (_NATIVE_LAUNCH_US if direction == "fwd" else 0.0)


def _waves(dims: Dims, device: Device) -> Floats:
    return np.maximum(1.0, dims["cols"] / (_BLOCKS_PER_SM * device.sm_count))
