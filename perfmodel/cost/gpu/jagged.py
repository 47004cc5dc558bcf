"""Physics of keyed jagged tensors, sorts, scans and selections."""

from __future__ import annotations

import numpy as np

from perfmodel.arrays import Floats
from perfmodel.cost.gpu.analysis import Analysis, Group, analyse_by_group
from perfmodel.cost.gpu.rates import bound_us, stream_bytes_per_us, transfer_us
from perfmodel.hardware import Device
from perfmodel.ops.spec import Dims

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


@analyse_by_group
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


_RADIX_BITS = 8.0
_ON_CHIP_KEYS = 4096.0
"""Keys that one thread block orders without going back to memory."""
_ON_CHIP_US, _ON_CHIP_PASS_US, _ON_CHIP_BITS = 7.8, 0.85, 6.0
"""A block's sort: its start, and each pass over so many bits. Source: V100 DLRM trace, 32 to 2,304
keys of 3 to 64 bits."""
_HISTOGRAM_US, _PASS_US = 8.0, 12.0
"""Of a radix sort, beside moving its keys: counting the digits, and each pass, whose blocks wait
for their predecessors' counts. Source: A100 DLRM trace, 61,000 keys."""
_SCATTERED = 1.74
"""Bytes that a pass moves, over those of keys and payload: keys land in 256 places. Source: A100
DLRM trace, 15.8 million keys."""
_LATENCY_US = {"cumsum": 5.0, "run_length_encode": 6.5}
"""Of kernels whose blocks wait for the sum of those before. Source: as `_HISTOGRAM_US`."""
_SHORT_US, _STEP_US = 2.0, 0.5
"""A kernel's start, and each step of a binary search."""
_UNIQUE_US = 16.0
"""Four kernels behind the sort: flags, their sums, and the distinct keys."""
_PASSES = {"unique": 2.0, "topk": 2.0}
"""Passes of ops that do more than read and write their keys, apart from a sort's."""


@analyse_by_group
def analyse_sorting(group: Group, device: Device) -> Analysis:
    """Passes over the keys at the memory's rate, each with its kernels' starts."""
    passes = np.full(len(group.index), _PASSES.get(group.op, 1.0))
    latency = np.full(len(group.index), _LATENCY_US.get(group.op, _SHORT_US))
    if group.op in ("sort", "sort_pairs", "unique"):
        sort_passes, latency = _sort(group.dims, group.item_bytes, device)
        passes = sort_passes + (passes if group.op == "unique" else 0.0)
        latency = latency + (_UNIQUE_US if group.op == "unique" else 0.0)
    elif group.op == "bucketize":
        latency = latency + _STEP_US * np.log2(group.dims["boundaries"] + 1.0)
    elif group.op == "topk":
        latency = _SHORT_US * (1.0 + 1.5 * passes)
    memory = transfer_us(passes * group.moved_bytes, device)
    bound = bound_us(group.moved_bytes, device)
    return Analysis(
        bound_us=bound,
        kernel_us=np.maximum(memory, bound) + latency,
        shares={"memory": memory, "latency": latency},
        flop=group.flop,
        read_bytes=group.read_bytes,
        written_bytes=group.written_bytes,
        features={"passes": passes},
    )


def _sort(dims: Dims, item: Floats, device: Device) -> tuple[Floats, Floats]:
    """(how often all bytes move, latency in microseconds) of sorting along `cols`."""
    stated = dims.get("key_bits", np.zeros_like(item))
    bits = np.where(stated > 0, stated, 8.0 * item)
    radix = np.ceil(bits / _RADIX_BITS)
    on_chip = dims["cols"] <= _ON_CHIP_KEYS
    blocks = np.maximum(1.0, dims["rows"] * dims["cols"] / (_ON_CHIP_KEYS * device.sm_count))
    block_us = _ON_CHIP_US + _ON_CHIP_PASS_US * np.ceil(bits / _ON_CHIP_BITS)
    return (
        np.where(on_chip, 1.0, 0.4 + _SCATTERED * radix),
        np.where(on_chip, blocks * block_us, _HISTOGRAM_US + _PASS_US * radix),
    )
