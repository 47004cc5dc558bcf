"""Physics of PyTorch's kernels that reduce rows or columns: how many values each thread loads, how
many blocks of threads follow one another, what they compute.

Source: PyTorch, aten/src/ATen/native/cuda: Reduce.cuh (`setReduceConfig`), Normalization.cuh
(`flexible_launch_configs`), layer_norm_kernel.cu, SoftMax.cu.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.gpu.analysis import Group
from perfmodel.cost.gpu.rates import missed_share
from perfmodel.hardware import Device

_C, _STREAMING = coefficients("gpu.reductions"), coefficients("gpu.streaming")
BY_COLUMNS = {"sum_rows"}
"""Ops whose outputs lie side by side; of others the values of each do."""
PRODUCT_FIRST = {("softmax", "bwd")}
"""What launches a kernel before its own that multiplies the result with its gradient."""


@dataclass(frozen=True)
class Launch:
    """How a kernel reduces, one entry per row of a table."""

    values: Floats
    """That a thread adds up, one after another."""
    turns: Floats
    """Blocks over those that the device holds at once."""
    parts: Floats
    """Blocks that share an output."""
    adders: Floats
    """Threads of the last of them, which add what the others left."""


def resident_blocks(threads: Floats | float, device: Device) -> Floats:
    """Blocks of `threads` that the device holds at once."""
    per_sm = (device.max_threads_per_sm or _STREAMING.usual_threads_per_sm) // np.asarray(threads)
    return np.asarray(device.sm_count * np.clip(per_sm, 1.0, _STREAMING.most_blocks_per_sm))


def _power_below(values: Floats, most: Floats | float) -> Floats:
    return np.asarray(2.0 ** np.floor(np.log2(np.clip(values, 1.0, most))))


def launch(length: Floats, outputs: Floats, device: Device, *, by_columns: bool) -> Launch:
    """How `length` values for each of `outputs` are reduced; `by_columns`: outputs lie side by
    side, and not the values of one."""
    vector, each, across, down = np.ones(len(length)), length, length, outputs
    if by_columns:
        halves = np.where(outputs % 2.0 == 0.0, 2.0, 1.0)
        vector = np.where(outputs % _C.most_vector == 0.0, _C.most_vector, halves)
        across, down = outputs / vector, length
    most = _C.most_threads / vector
    width, height = _power_below(across, most), _power_below(down, most)
    height = np.minimum(height, most / np.minimum(width, _STREAMING.warp_threads))
    width = np.minimum(width, most / height)
    each = length if by_columns else np.ceil(length / width)
    is_split = each >= np.minimum(height * _C.least_values, _C.most_values)
    each = np.where(is_split, np.ceil(each / height), each)
    beside = vector * width if by_columns else 1.0
    grid = np.ceil(outputs / beside / np.where(is_split, 1.0, height))
    resident = resident_blocks(width * height, device)
    least, fewest = np.ceil(each / _C.least_values), np.ceil(each / _C.most_values)
    parts = np.maximum(np.minimum(np.ceil(resident / grid), least), fewest)
    parts = np.where(is_split & (each >= _C.most_values) & (grid <= resident), parts, 1.0)
    adders = height if by_columns else width * height
    return Launch(each / parts, grid * parts / resident, parts, adders)


def _launch(group: Group, device: Device) -> Launch:
    rows, cols = group.dims["rows"], group.dims["cols"]
    by_columns = group.op in BY_COLUMNS
    length, outputs = (rows, cols) if by_columns else (cols, rows)
    return launch(length, outputs, device, by_columns=by_columns)


def load_us(group: Group, device: Device) -> Floats:
    """A turn of loads: from memory, or what fits there from the L2, where the kernel before wrote
    it."""
    missed = np.where(group.flushed, 1.0, missed_share(group.moved_bytes, device))
    return _C.cached_load_us + missed * (_C.load_us - _C.cached_load_us)


def reduced_us(group: Group, device: Device, moving_us: Floats) -> Floats:
    """Turns of blocks whose threads wait for their values, a few at a time, while bytes move; then
    what adds the parts of an output that several blocks share.

    The first loads are waited for before anything moves, and so are all where few threads ask.
    """
    found = _launch(group, device)
    at_once = np.full(len(group.index), _C.loads_at_once)
    if group.op in _C.tuples("narrow_loads_at_once"):
        (narrow,) = _C.tuples("narrow_loads_at_once")[group.op]
        at_once = np.where(group.item_bytes < _C.full_bytes, narrow, at_once)
    loads = np.ceil(found.values / at_once)
    turns = np.maximum(found.turns, 1.0)
    loads_us, turn_us = load_us(group, device) * loads, moving_us / turns
    apart = 1.0 - np.minimum(found.turns, 1.0) * (1.0 - 1.0 / loads)
    turn_us = np.maximum(turn_us, loads_us) + apart * np.minimum(turn_us, loads_us)
    later_us = together_us(turn_us, _C.block_us)
    added_us = _C.parted_us + _C.part_us * np.ceil(found.parts / found.adders)
    added_us = np.where(found.parts > 1.0, added_us, 0.0)
    return np.asarray(turn_us + later_us * (turns - 1.0) + added_us)


def softmax_us(group: Group, device: Device, moving_us: Floats) -> Floats:
    """A row that a warp keeps is loaded at once, others in passes; backward, after a kernel that
    multiplies the result with its gradient."""
    cols = group.dims["cols"]
    passes = _C.softmax_passes * np.ceil(cols / _C.softmax_pass_cols)
    loads_us = load_us(group, device) * np.where(cols <= _C.softmax_warp_cols, 1.0, passes)
    product_us: Floats | float = 0.0
    if (group.op, group.direction) in PRODUCT_FIRST:
        product_us = _C.second_kernel_us + moving_us
    return np.maximum(moving_us, _softmax_steps_us(group, device)) + loads_us + product_us


def _softmax_steps_us(group: Group, device: Device) -> Floats:
    """Threads that go through their rows element by element: of rows that a warp keeps, of longer
    ones, of longer ones that start amid a vector, and of those whose elements lie apart."""
    cols = group.dims["cols"]
    threads = device.sm_count * (device.max_threads_per_sm or _STREAMING.usual_threads_per_sm)
    is_aligned = cols * group.item_bytes % _STREAMING.vector_bytes == 0
    step_us = np.where(is_aligned, _C.softmax_block_us, _C.softmax_unaligned_us)
    step_us = np.where(cols <= _C.softmax_warp_cols, _C.softmax_warp_us, step_us)
    step_us = np.where(group.dims["strided"] > 0, _C.softmax_strided_us, step_us)
    return step_us * group.dims["rows"] * cols / threads


def together_us(moving_us: Floats, waited_us: Floats | float) -> Floats:
    """What overlaps in part: more than the longer, and less than both."""
    power = _C.together_exponent
    return np.asarray((moving_us**power + waited_us**power) ** (1.0 / power))
