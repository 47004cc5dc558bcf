"""Physics of kernels that stream operands: bytes, caches, passes over rows, waiting threads.

Constants are of traces on H100 and V100 (`program.HABITS` says which); none was held out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.arrays import Floats
from perfmodel.cost.gpu.analysis import Analysis, Group, analyse_by_group
from perfmodel.cost.gpu.rates import (
    bound_us,
    hbm_bytes_per_us,
    l2_bytes_per_us,
    missed_share,
    special_per_us,
    stream_bytes_per_us,
    transfer_us,
    vector_flop_per_us,
)
from perfmodel.hardware import Device
from perfmodel.ops.spec import Dims


@dataclass(frozen=True)
class RowKernel:
    """How often a row is read again, and by how many threads: those decide how many rows at once.

    Source: PyTorch 2.1, `vectorized_layer_norm_kernel` (128 threads) and `cunn_SoftMaxForward`
    (cols / 4, at most 1024; up to 1024 columns a warp keeps its row in registers).
    """

    again: float
    least_threads: float
    most_threads: float
    register_cols: float = 0.0
    """Longest row that is never read again."""


_NORM = RowKernel(again=1.0, least_threads=128.0, most_threads=128.0)
_SOFTMAX = RowKernel(again=2.0, least_threads=32.0, most_threads=1024.0, register_cols=1024.0)
_RMS_NORM = RowKernel(again=1.0, least_threads=128.0, most_threads=1024.0)
ROW_KERNELS = {
    "layer_norm": _NORM,
    "rms_norm": _RMS_NORM,
    "softmax": _SOFTMAX,
    "log_softmax": _SOFTMAX,
}
_COLS_PER_THREAD = 4.0
_USUAL_THREADS_PER_SM = 2048.0
_HELD_UP_TO = 0.1
_GONE_FROM = 1.2
"""Bytes of all rows that are worked on at once over the L2's: up to the first the second pass finds
all of its row there, from the second on nothing. Source: fp32 layer_norm and softmax on P4 to A100
and MI100 (sitar-lab/NeuSight@6945927d), rows up to 1500 and 2500 columns told those beyond."""


def resident_share(op: str, rows: Floats, cols: Floats, item: Floats, device: Device) -> Floats:
    """Bytes of the rows that are worked on at once over the L2's; 0 where one pass is enough."""
    kernel = ROW_KERNELS[op]
    threads = np.clip(cols / _COLS_PER_THREAD, kernel.least_threads, kernel.most_threads)
    per_sm = (device.max_threads_per_sm or _USUAL_THREADS_PER_SM) / threads
    at_once = np.minimum(rows, device.sm_count * np.maximum(per_sm, 1.0))
    found = at_once * cols * item / device.l2_bytes
    return np.where(cols > kernel.register_cols, found, 0.0)


def repeated_passes(op: str, resident: Floats) -> tuple[Floats, Floats]:
    """Passes over the row after the first: (all of them, those that go to memory), per row."""
    kernel = ROW_KERNELS[op]
    missed = np.clip((resident - _HELD_UP_TO) / (_GONE_FROM - _HELD_UP_TO), 0.0, 1.0)
    return np.where(resident > 0.0, kernel.again, 0.0), kernel.again * missed


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


_CHANNEL_START_US = 3.0
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


@analyse_by_group
def analyse_channels(group: Group, device: Device) -> Analysis:
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
        kernel_us=np.maximum(together, bound) + _CHANNEL_START_US,
        shares={"memory": memory, "latency": latency + _CHANNEL_START_US},
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


_ACHIEVED_FRAC = 0.82
"""Of the bus's rate, after packet headers. Source: PCIe 3.0 x16 copies of pinned memory, 12.9 of
15.75 GB/s; Lin et al. 2022 take 8.1 for pageable memory."""
_PAGEABLE_GB_PER_S = 6.0
"""One host thread copies through the driver's buffer, whatever the bus."""
_TRANSFER_START_US = 1.5


@analyse_by_group
def analyse_transfers(group: Group, device: Device) -> Analysis:
    """Bytes over PCIe or the link to the host or to a peer."""
    written, to_peer = group.written_bytes, group.op == "copy_p2p"
    peak = device.peer_gb_per_s if to_peer else device.host_gb_per_s
    through_buffer = (group.dims["pinned"] == 0) & (not to_peer)
    reached = _ACHIEVED_FRAC * peak
    rate = np.where(through_buffer, min(reached, _PAGEABLE_GB_PER_S), reached) * 1e3
    bound = np.maximum(written / (peak * 1e3), written / hbm_bytes_per_us(device))
    link = written / rate
    return Analysis(
        bound_us=bound,
        kernel_us=_TRANSFER_START_US + link,
        shares={"link": link, "latency": np.full(len(written), _TRANSFER_START_US)},
        flop=np.zeros(len(written)),
        read_bytes=group.read_bytes,
        written_bytes=written,
    )


START_US = 1.0
"""From a kernel's first block to its last byte, apart from moving them."""
SPECIAL_PER_ELEMENT = {
    "gelu": 4.0,
    "tanh": 3.0,
    "pow": 8.0,
    "pow_scalar": 2.0,
    "softmax": 2.0,
    "sigmoid": 2.0,
    "silu_and_mul": 2.0,
}
"""Exponentials, roots and divisions per element, in units of the special-function pipes."""


@analyse_by_group
def analyse(group: Group, device: Device) -> Analysis:
    """Bytes at the memory's or the cache's rate, beside the vector units'."""
    total = group.read_bytes + group.written_bytes
    passes, missed = _read_again(group, device)
    memory = transfer_us(total, device) + (
        missed * group.read_bytes * missed_share(total, device)
    ) / stream_bytes_per_us(device)
    cache = (total + passes * group.read_bytes) / l2_bytes_per_us(device)
    elements = group.written_bytes / 4.0
    special = SPECIAL_PER_ELEMENT.get(group.op, 0.0) * elements / special_per_us(device)
    compute = np.maximum(group.flop / vector_flop_per_us(device), special)
    bound = np.maximum(bound_us(total, device), group.flop / (2.0 * vector_flop_per_us(device)))
    busy = np.maximum(np.maximum(memory, cache), np.maximum(compute, bound))
    return Analysis(
        bound_us=bound,
        kernel_us=START_US + busy,
        shares={"compute": compute, "memory": memory, "cache": cache},
        flop=group.flop,
        read_bytes=group.read_bytes,
        written_bytes=group.written_bytes,
    )


def _read_again(group: Group, device: Device) -> tuple[Floats, Floats]:
    if group.op not in ROW_KERNELS:
        return np.zeros(len(group.index)), np.zeros(len(group.index))
    rows, cols = group.dims["rows"], group.dims["cols"]
    return repeated_passes(group.op, resident_share(group.op, rows, cols, group.item_bytes, device))
