"""Physics of keyed jagged tensors, sorts, scans, selections and chains of recurrent layers."""

from __future__ import annotations

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.gpu.analysis import Analysis, Group, analyse_by_group
from perfmodel.cost.gpu.rates import USUAL, bound_us, stream_bytes_per_us, transfer_us
from perfmodel.hardware import Device
from perfmodel.hardware.generations import nearest_known
from perfmodel.ops.spec import Dims
from perfmodel.ops.vocabulary.movement import BLOCK_KEYS, keys_of_block

_C, _KERNEL = coefficients("gpu.jagged"), coefficients("gpu.kernel")
Passes = tuple[Floats, Floats]
"""How often all bytes move, and latency in microseconds."""


@analyse_by_group
def analyse(group: Group, device: Device) -> Analysis:
    """Bytes in pieces of sectors, against waves of warps that wait for their loads."""
    dims, op = group.dims, group.op
    segments = np.minimum(dims["segments"], dims["elements"])
    streams = _C.table("streams").get(op, _C.usual_streams)
    fragments = _C.sector_bytes * streams * segments
    memory = (group.moved_bytes + fragments) / stream_bytes_per_us(device)
    warps = segments / _C.table("segments_per_warp").get(op, 1.0)
    waves = np.maximum(1.0, warps / (device.sm_count * _C.warps_per_sm))
    latency = (
        waves
        * _C.table("chain_us").get(op, _C.usual_chain_us)
        * _rounds(dims["elements"] / segments)
    )
    bound = bound_us(group.moved_bytes, device)
    return group.analysis(
        bound_us=bound,
        kernel_us=np.maximum.reduce([memory, latency, bound]) + _KERNEL.start_us,
        shares={"memory": memory, "latency": latency + _KERNEL.start_us},
    )


def _rounds(mean_length: Floats) -> Floats:
    """How often a warp goes over its longest segment, `_C.lanes` values at a time."""
    return np.maximum(1.0, _C.longest * mean_length / _C.lanes)


@analyse_by_group
def analyse_sorting(group: Group, device: Device) -> Analysis:
    """Passes over the keys at the memory's rate, each with its kernels' starts."""
    passes = np.full(len(group.index), _C.table("passes").get(group.op, 1.0))
    latency = np.full(len(group.index), _C.table("latency_us").get(group.op, _KERNEL.start_us))
    if group.op in _PASSES:
        passes, latency = _PASSES[group.op](group, device, (passes, latency))
    memory = transfer_us(passes * group.moved_bytes, device)
    bound = bound_us(group.moved_bytes, device)
    busy = np.maximum(memory, bound)
    if group.op in _BUSY:
        busy = _BUSY[group.op](group, device, busy)
    return group.analysis(
        bound_us=bound,
        kernel_us=busy + latency,
        shares={"memory": memory, "latency": latency},
        features={"passes": passes},
    )


def _scanned(group: Group, device: Device, busy: Floats) -> Floats:
    """Sums along several rows: a tree of sums with barriers for every few columns."""
    clocks = _C.scan_clocks * group.dims["rows"] * group.dims["cols"]
    summed = np.where(group.dims["rows"] > 1.0, clocks / (device.sm_count * device.boost_mhz), 0.0)
    return np.maximum(busy, summed)


def _selected(group: Group, device: Device, busy: Floats) -> Floats:
    """Keys counted digit by digit by threads of all multiprocessors, then those found gathered."""
    digits = np.ceil(8.0 * group.item_bytes / _C.digit_bits)
    clocks = digits / _C.counted_per_sm_per_clock + 1.0 / _C.found_per_sm_per_clock
    keys = group.dims["rows"] * group.dims["cols"]
    return np.maximum(busy, keys * clocks / (device.sm_count * device.boost_mhz))


def _sort(group: Group, device: Device, usual: Passes) -> Passes:
    """Along `cols`."""
    dims, item = group.dims, group.item_bytes
    stated = dims.get("key_bits", np.zeros_like(item))
    bits = np.where(stated > 0, stated, 8.0 * item)
    radix = np.ceil(bits / _C.radix_bits)
    keys = keys_of_block(item) if group.op in _WITH_PAYLOAD else BLOCK_KEYS
    on_chip = dims["cols"] <= keys
    blocks = np.maximum(1.0, dims["rows"] * dims["cols"] / (keys * device.sm_count))
    starts = _C.table("on_chip_us")
    start_us = starts[nearest_known(device.architecture, starts) or USUAL]
    block_us = start_us + _C.on_chip_pass_us * np.ceil(bits / _C.on_chip_bits)
    return (
        np.where(on_chip, 1.0, _C.histogram_passes + _C.scattered * radix),
        np.where(on_chip, blocks * block_us, _C.histogram_us + _C.pass_us * radix),
    )


def _unique(group: Group, device: Device, usual: Passes) -> Passes:
    passes, latency = _sort(group, device, usual)
    return passes + usual[0], latency + _C.unique_us


def _bucketize(group: Group, device: Device, usual: Passes) -> Passes:
    return usual[0], usual[1] + _C.step_us * np.log2(group.dims["boundaries"] + 1.0)


def _topk(group: Group, device: Device, usual: Passes) -> Passes:
    return usual[0], _KERNEL.start_us * (1.0 + _C.pass_shorts * usual[0])


_WITH_PAYLOAD = {"sort_pairs"}
_PASSES = {"sort": _sort, "sort_pairs": _sort}
_PASSES |= {"unique": _unique, "bucketize": _bucketize, "topk": _topk}
"""Where passes and latency are not those of the coefficients' tables alone."""
_BUSY = {"cumsum": _scanned, "topk": _selected}
"""Where more than memory is waited for while keys move."""


_RECURRENT = coefficients("gpu.recurrent")


@analyse_by_group
def analyse_recurrent(group: Group, device: Device) -> Analysis:
    """Turns of a chain, each as many clocks, however much the device could move or compute."""
    chain = _CLOCKS[group.op](group.dims, device) / device.boost_mhz
    bound = bound_us(group.moved_bytes, device)
    return group.analysis(
        bound_us=bound,
        kernel_us=np.maximum(chain, bound),
        shares={"memory": bound, "latency": chain},
    )


def _persistent_clocks(dims: Dims, device: Device) -> Floats:
    """A block per sequence has a thread per gate, which keeps a row of the weights in registers;
    each step goes over the state, value after value. As many blocks run at a time as registers
    hold."""
    registers = dims["gates"] * dims["hidden"] * (dims["hidden"] + _RECURRENT.own_registers)
    at_once = np.maximum(np.floor(_RECURRENT.registers / registers), 1.0)
    waves = np.ceil(dims["batch"] / (device.sm_count * at_once))
    return np.asarray(waves * dims["steps"] * dims["hidden"] * _RECURRENT.value_clocks)


def _bias_clocks(dims: Dims, device: Device) -> Floats:
    """A block of 32 x 32 threads per 32 units goes over all steps and sequences, 32 at a time."""
    turns = np.ceil(dims["steps"] * dims["batch"] / _RECURRENT.bias_rows)
    return np.asarray(turns * _RECURRENT.bias_clocks)


_CLOCKS = {"persistent_rnn": _persistent_clocks, "rnn_bias_gradient": _bias_clocks}
"""Of all turns of an op's chain."""
