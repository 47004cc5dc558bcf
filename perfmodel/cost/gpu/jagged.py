"""Physics of keyed jagged tensors, sorts, scans and selections."""

from __future__ import annotations

import numpy as np

from perfmodel.arrays import Floats
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.gpu.analysis import Analysis, Group, analyse_by_group
from perfmodel.cost.gpu.rates import bound_us, stream_bytes_per_us, transfer_us
from perfmodel.hardware import Device
from perfmodel.ops.spec import Dims

_C = coefficients("gpu.jagged")
_START_US = _C.number("start_us")
_WARPS_PER_SM = _C.number("warps_per_sm")
_LANES = _C.number("lanes")
_CHAIN_US = _C.numbers("chain_us")
_USUAL_CHAIN_US = _C.number("usual_chain_us")
_SECTOR_BYTES = _C.number("sector_bytes")
_STREAMS = _C.numbers("streams")
_USUAL_STREAMS = _C.number("usual_streams")
_SEGMENTS_PER_WARP = _C.numbers("segments_per_warp")
_LONGEST = _C.number("longest")


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


_RADIX_BITS = _C.number("radix_bits")
_ON_CHIP_KEYS = _C.number("on_chip_keys")
_ON_CHIP_US = _C.number("on_chip_us")
_ON_CHIP_PASS_US = _C.number("on_chip_pass_us")
_ON_CHIP_BITS = _C.number("on_chip_bits")
_HISTOGRAM_US = _C.number("histogram_us")
_PASS_US = _C.number("pass_us")
_SCATTERED = _C.number("scattered")
_LATENCY_US = _C.numbers("latency_us")
_SHORT_US = _C.number("short_us")
_STEP_US = _C.number("step_us")
_UNIQUE_US = _C.number("unique_us")
_PASSES = _C.numbers("passes")


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
