"""Kernels of PyTorch whose threads wait for their own loads: few threads, or element by element.

Constants are of traces on H100 and V100 (`program.HABITS` says which); none was held out.
"""

from __future__ import annotations

import numpy as np

from perfmodel.hardware import Device
from perfmodel.kernels.gpu.analysis import Group
from perfmodel.ops.spec import Floats

_VECTOR_BYTES = 16.0
_THREADS_PER_SM = 1024.0
"""Two blocks of 512 per multiprocessor and tensor, or eight of 128, whatever the size. Source:
PyTorch, aten/src/ATen/native/cuda/Shape.cu and Indexing.cu."""
_CAT_LOAD_US, _CAT_STRIDED_LOAD_US = 0.6, 1.1
"""An element read and written, from one stretch or by divisions of its index."""
_CAT_TENSOR_US = 0.3
"""The blocks of one more tensor, when each has next to nothing to do."""
_SELECT_LOAD_US = 0.75
"""Source: Qwen traces on H100; MI300X agrees to 5 %."""
_ACCUMULATE_US, _WARPS_PER_SM = 2.2, 64.0
"""A warp that adds one row of at most `_ROW_PER_WARP` elements, after the row before it. Source:
Lin et al. 2022, two sizes on V100 (PyTorch of 2021)."""
_ROW_PER_WARP = 128.0
_ATOMIC_LINE_US = {"cuda": 0.0064, "rocm": 0.068}
"""A warp's additions to a line of the L2, behind those of other warps to the same line. Source:
A100 DLRM trace, 60,000 single elements added to 50, by 1,875 warps to two lines in 12 us; MI300X,
1,305,301 added to 100 in 1.39 ms (pytorch/pytorch, pull request 146264, before it). Checked with
rows of 128 fp32 elements on GB200, of which 3.89 million go to one: at least 4.6 ns each, by a
faster kernel (pull request 182675, read without its unit: ms by its size)."""
_LANES = {"cuda": 32.0, "rocm": 64.0}
_LINE_BYTES = 128.0
_SOFTMAX_WARP_COLS = 1024.0
"""Longest row that one warp keeps. Source: PyTorch, aten/src/ATen/native/cuda/SoftMax.cu."""
_SOFTMAX_STEP_US = 1.65
"""Three passes of a block over its row, a load each."""


def cat_waits_us(group: Group, device: Device) -> Floats:
    """The largest tensor, by the few threads that copy it."""
    dims = group.dims
    largest = np.where(dims["largest"] > 0, dims["largest"], dims["rows"] * dims["cols"])
    steps = largest / (_THREADS_PER_SM * device.sm_count)
    step_us = np.where(dims["strided"] > 0, _CAT_STRIDED_LOAD_US, _CAT_LOAD_US)
    return _CAT_TENSOR_US * dims["tensors"] + step_us * steps


def select_waits_us(group: Group, device: Device) -> Floats:
    """Elements of the selected rows, by the few threads that copy them."""
    elements = group.dims["rows"] * group.dims["cols"]
    return _SELECT_LOAD_US * elements / (_THREADS_PER_SM * device.sm_count)


def accumulate_waits_us(group: Group, device: Device) -> Floats:
    """A warp per row that is added, however short it is."""
    each = np.ceil(group.dims["cols"] / _ROW_PER_WARP)
    return _ACCUMULATE_US * each * group.dims["rows"] / (_WARPS_PER_SM * device.sm_count)


def atomic_waits_us(group: Group, device: Device) -> Floats:
    """Warps that add to the line of a table which most add to, one after another: one per row that
    fills lines, or all that add to the short rows of one line."""
    dims = group.dims
    known = dims["hash_size"] > 0
    mean = np.where(known, dims["rows"] / np.maximum(dims["hash_size"], 1.0), 0.0)
    most = np.where(dims["most_repeated"] > 0, dims["most_repeated"], mean)
    rows_per_line = np.maximum(_LINE_BYTES / (group.item_bytes * dims["cols"]), 1.0)
    warps = dims["rows"] * dims["cols"] / _LANES[device.target]
    turns: Floats = np.minimum(most * rows_per_line, warps)
    return _ATOMIC_LINE_US[device.target] * turns


def softmax_waits_us(group: Group, device: Device) -> Floats:
    """Rows that start amid a vector, too long for a warp: an element per load and thread."""
    cols = group.dims["cols"]
    elements = group.dims["rows"] * cols
    threads = device.sm_count * float(device.max_threads_per_sm or 2048)
    is_unaligned = cols * group.item_bytes % _VECTOR_BYTES != 0
    slow = is_unaligned & (cols > _SOFTMAX_WARP_COLS)
    return np.where(slow, _SOFTMAX_STEP_US * elements / threads, 0.0)
