"""Physics of kernels that stream operands: bytes, caches, passes over rows, waiting threads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.arrays import Floats
from perfmodel.cost.coefficients import coefficients
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
    """How often a row is read again, and by how many threads: they decide how many rows at once."""

    again: float
    least_threads: float
    most_threads: float
    register_cols: float = 0.0
    """Longest row that is never read again."""


_C = coefficients("gpu.streaming")
_ROW_KERNELS = {op: RowKernel(*figures) for op, figures in _C.tuples("row_kernels").items()}
ROW_KERNELS = {
    "layer_norm": _ROW_KERNELS["layer_norm"],
    "rms_norm": _ROW_KERNELS["rms_norm"],
    "softmax": _ROW_KERNELS["softmax"],
    "log_softmax": _ROW_KERNELS["softmax"],
}
_COLS_PER_THREAD = _C.number("cols_per_thread")
_USUAL_THREADS_PER_SM = _C.number("usual_threads_per_sm")
_HELD_UP_TO = _C.number("held_up_to")
_GONE_FROM = _C.number("gone_from")


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


_VECTOR_BYTES = _C.number("vector_bytes")
_THREADS_PER_SM = _C.number("threads_per_sm")
_CAT_LOAD_US = _C.number("cat_load_us")
_CAT_STRIDED_LOAD_US = _C.number("cat_strided_load_us")
_CAT_TENSOR_US = _C.number("cat_tensor_us")
_SELECT_LOAD_US = _C.number("select_load_us")
_ACCUMULATE_US = _C.number("accumulate_us")
_WARPS_PER_SM = _C.number("warps_per_sm")
_ROW_PER_WARP = _C.number("row_per_warp")
_ATOMIC_LINE_US = _C.numbers("atomic_line_us")
_LANES = _C.numbers("lanes")
_LINE_BYTES = _C.number("line_bytes")
_SOFTMAX_WARP_COLS = _C.number("softmax_warp_cols")
_SOFTMAX_STEP_US = _C.number("softmax_step_us")


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


_CHANNEL_START_US = _C.number("channel_start_us")
_BLOCKS_PER_SM = _C.number("blocks_per_sm")
_SM_SHARE = _C.number("sm_share")
_PASSES = _C.tuples("passes")
_ON_CHIP_PASSES = _C.tuples("on_chip_passes")
_ON_CHIP_BYTES = _C.number("on_chip_bytes")
_BLOCK_US = _C.number("block_us")
_NATIVE_US = _C.tuples("native_us")
_NATIVE_LAUNCH_US = _C.number("native_launch_us")


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


_ACHIEVED_FRAC = _C.number("achieved_frac")
_PAGEABLE_GB_PER_S = _C.number("pageable_gb_per_s")
_TRANSFER_START_US = _C.number("transfer_start_us")


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


START_US = _C.number("start_us")
SPECIAL_PER_ELEMENT = _C.numbers("special_per_element")


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
