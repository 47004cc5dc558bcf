"""Kernels of PyTorch whose threads wait for their own loads: few threads, or element by element.

Constants are of traces on H100 and V100 (`program.HABITS` says which); none was held out.
"""

from __future__ import annotations

import numpy as np

from perfmodel.hardware import Device
from perfmodel.kernels.gpu.analysis import Group
from perfmodel.ops.spec import Floats

_VECTOR_BYTES = 16.0
_CAT_THREADS_PER_SM = 1024.0
"""Two blocks of 512 per multiprocessor and tensor, whatever its size. Source: PyTorch,
aten/src/ATen/native/cuda/Shape.cu."""
_CAT_LOAD_US, _CAT_STRIDED_LOAD_US = 0.6, 1.1
"""An element read and written, from one stretch or by divisions of its index."""
_CAT_TENSOR_US = 0.3
"""The blocks of one more tensor, when each has next to nothing to do."""
_SOFTMAX_WARP_COLS = 1024.0
"""Longest row that one warp keeps. Source: PyTorch, aten/src/ATen/native/cuda/SoftMax.cu."""
_SOFTMAX_STEP_US = 1.65
"""Three passes of a block over its row, a load each."""


def cat_waits_us(group: Group, device: Device) -> Floats:
    """The largest tensor, by the few threads that copy it."""
    dims = group.dims
    largest = np.where(dims["largest"] > 0, dims["largest"], dims["rows"] * dims["cols"])
    steps = largest / (_CAT_THREADS_PER_SM * device.sm_count)
    step_us = np.where(dims["strided"] > 0, _CAT_STRIDED_LOAD_US, _CAT_LOAD_US)
    return _CAT_TENSOR_US * dims["tensors"] + step_us * steps


def softmax_waits_us(group: Group, device: Device) -> Floats:
    """Rows that start amid a vector, too long for a warp: an element per load and thread."""
    cols = group.dims["cols"]
    elements = group.dims["rows"] * cols
    threads = device.sm_count * float(device.max_threads_per_sm or 2048)
    is_unaligned = cols * group.item_bytes % _VECTOR_BYTES != 0
    slow = is_unaligned & (cols > _SOFTMAX_WARP_COLS)
    return np.where(slow, _SOFTMAX_STEP_US * elements / threads, 0.0)
