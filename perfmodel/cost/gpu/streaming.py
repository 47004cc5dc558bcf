"""Physics of kernels that stream operands: bytes, caches, passes over rows, waiting threads."""

from __future__ import annotations

import numpy as np

from perfmodel.base.arrays import Floats, Mask, clipped
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.gpu.analysis import Analysis, Group, analyse_by_group
from perfmodel.cost.gpu.rates import (
    USUAL,
    bound_us,
    hbm_bytes_per_us,
    l2_bytes_per_us,
    missed_share,
    special_per_us,
    stream_bytes_per_us,
    transfer_us,
    vector_flop_per_us,
)
from perfmodel.cost.gpu.reductions import load_us, resident_blocks
from perfmodel.hardware import Device
from perfmodel.hardware.generations import nearest_known
from perfmodel.ops.spec import OPS

_C = coefficients("gpu.streaming")
ROW_KERNELS = frozenset(_C.tuples("row_kernels"))


def resident_share(op: str, rows: Floats, cols: Floats, item: Floats, device: Device) -> Floats:
    """Bytes of the rows that are worked on at once over the L2's; 0 where one pass is enough."""
    _, least_threads, most_threads, register_cols = _C.tuples("row_kernels")[op]
    threads = clipped(cols / _C.cols_per_thread, least_threads, most_threads)
    per_sm = (device.max_threads_per_sm or _C.usual_threads_per_sm) / threads
    at_once = np.minimum(rows, device.sm_count * np.maximum(per_sm, 1.0))
    share = at_once * cols * item / device.l2_bytes
    return np.where(cols > register_cols, share, 0.0)


def repeated_passes(op: str, resident: Floats) -> tuple[Floats, Floats]:
    """Passes over the row after the first: (all of them, those that go to memory), per row."""
    again, *_ = _C.tuples("row_kernels")[op]
    missed = clipped((resident - _C.held_up_to) / (_C.gone_from - _C.held_up_to), 0.0, 1.0)
    return np.where(resident > 0.0, again, 0.0), again * missed


WIDENED_ONE_BY_ONE = ("cuda",)
"""Where PyTorch has no kernel of vectors that makes fp32 of 16 bits, but one for any two types.
Source: aten/src/ATen/native/cuda/Copy.cu (`bfloat16tofloat32_copy_kernel_cuda`: ROCm alone)."""


def indexing_us(group: Group, device: Device) -> Floats:
    """Threads that find by divisions where each element of a smaller operand lies, or of one whose
    stretches lie apart, or that load one by one what they widen; 0 for others."""
    dims, none, size = group.dims, np.zeros(len(group.index)), OPS[group.op].size
    if size is None:
        return none
    clocks = size(dims) / (device.sm_count * device.boost_mhz)
    widened = dims.get("widened", none) * (device.target in WIDENED_ONE_BY_ONE)
    each = np.maximum(dims.get("apart", none), widened)
    indexed = dims.get("broadcast", none) / _C.table("indexed_per_sm_per_clock")[device.target]
    return clocks * np.maximum(indexed, each / _C.table("apart_per_sm_per_clock")[device.target])


def chunks_us(group: Group, device: Device, moving_us: Floats) -> Floats:
    """One block for each chunk of a tensor, however few there are: the longest chunk, a load of
    each list after the other."""
    dims = group.dims
    largest = np.where(dims["largest"] > 0, dims["largest"], dims["elements"])
    turns = np.ceil(np.minimum(largest, _C.chunk_elements) / _C.chunk_turn_elements)
    lists = group.moved_bytes / (dims["elements"] * dims["tensors"] * group.item_bytes)
    return np.maximum(moving_us, _C.chunk_list_us * lists * turns)


def joined_us(group: Group, device: Device, moving_us: Floats) -> Floats:
    """As many blocks start for each tensor as the largest takes; or, by elements, few threads for
    the largest tensor, however large."""
    dims = group.dims
    largest = np.where(dims["largest"] > 0, dims["largest"], dims["rows"] * dims["cols"])
    vectors = largest * group.item_bytes / (_C.vector_bytes * _C.cat_threads)
    blocks = np.minimum(np.ceil(vectors), _C.cat_blocks_per_sm * device.sm_count)
    started_us = dims["tensors"] * blocks / (_C.blocks_per_clock * device.boost_mhz)
    steps = largest / (_C.threads_per_sm * device.sm_count)
    step_us = np.where(dims["strided"] > 0, _C.cat_strided_load_us, _C.cat_load_us)
    by_elements_us = _C.cat_tensor_us * dims["tensors"] + step_us * steps
    by_vectors = joined_by_vectors(group, device)
    return np.maximum(moving_us, np.where(by_vectors, started_us, by_elements_us))


def joined_by_vectors(group: Group, device: Device) -> Mask:
    """Of which calls of `cat` every thread reads a vector, so that each operand moves once.

    Source: aten/src/ATen/native/cuda/Shape.cu (`CatArrayBatchedCopy_vectorized`, PyTorch 2.9; the
    traces at hand on ROCm are of an earlier one).
    """
    by_elements = (group.dims["by_elements"] > 0) | (group.dims["strided"] > 0)
    return ~by_elements & (device.target == "cuda")


def selected_us(group: Group, device: Device, moving_us: Floats) -> Floats:
    """Rows of whole vectors by a block of threads each, as fast as blocks start; of others each
    thread takes several elements, one after another: finds where one lies, then what is there."""
    rows, cols = group.dims["rows"], group.dims["cols"]
    row_bytes, elements = cols * group.item_bytes, rows * cols
    blocks = rows * np.ceil(row_bytes / _C.select_block_bytes)
    started_us = blocks / (_C.blocks_per_clock * device.boost_mhz)
    each = np.minimum(np.ceil(elements / _C.element_threads), _C.select_turns)
    resident = resident_blocks(_C.element_threads, device)
    waves = np.maximum(elements / (_C.element_threads * _C.select_turns) / resident, 1.0)
    single_us = _C.element_loads * load_us(group, device) * each * waves
    is_by_rows = row_bytes % _C.vector_bytes == 0
    return np.maximum(moving_us, np.where(is_by_rows, started_us, single_us))


def accumulated_us(group: Group, device: Device, moving_us: Floats) -> Floats:
    """A warp per row that is added, however short it is."""
    each = np.ceil(group.dims["cols"] / _C.row_per_warp)
    known = _C.table("accumulate_us")
    turn_us = known[nearest_known(device.architecture, known) or USUAL]
    waited_us = turn_us * each * group.dims["rows"] / (_C.warps_per_sm * device.sm_count)
    return np.maximum(moving_us, waited_us)


def added_us(group: Group, device: Device, moving_us: Floats) -> Floats:
    """Warps that add to the line of a table which most add to, one after another: one per row that
    fills lines, or all that add to the short rows of one line; or, unless vectors are added, all
    elements at the rate at which the L2 adds, each by itself."""
    dims = group.dims
    known = dims["hash_size"] > 0
    mean = np.where(known, dims["rows"] / np.maximum(dims["hash_size"], 1.0), 0.0)
    most = np.where(dims["most_repeated"] > 0, dims["most_repeated"], mean)
    rows_per_line = np.maximum(_C.line_bytes / (group.item_bytes * dims["cols"]), 1.0)
    warps = dims["rows"] * dims["cols"] / _C.table("lanes")[device.target]
    turns: Floats = np.minimum(most * rows_per_line, warps)
    queued = _C.table("atomic_line_us")[device.target] * turns
    rate = _C.table("adds_per_sm_per_clock").get(device.target, np.inf)
    added = np.where(dims["by_vectors"] > 0, 0.0, dims["rows"] * dims["cols"])
    added_us = added / (rate * device.sm_count * device.boost_mhz)
    return np.maximum(moving_us, np.maximum(queued, added_us))


def programs_us(group: Group, device: Device, moving_us: Floats) -> Floats:
    """Rows by a block of threads each: as fast as blocks start, or as many at once as there is room
    for, each for as long as one lives; or by a few blocks, one after another."""
    rows, resident = group.dims["by_rows"], group.dims["resident"]
    one_us, next_us = _C.tuples("program_us")[device.target]
    started = rows / (_C.blocks_per_clock * device.boost_mhz)
    turns = np.maximum(rows / resident_blocks(group.dims["threads"], device), 1.0)
    in_turn = one_us + next_us * rows / (np.maximum(resident, 1.0) * device.sm_count)
    waited_us = np.where(resident > 0, in_turn, np.maximum(started, turns * one_us))
    return np.maximum(moving_us, np.where(rows > 0, waited_us, 0.0))


@analyse_by_group
def analyse_channels(group: Group, device: Device) -> Analysis:
    """Passes over the channels at the memory's rate, or what the blocks of threads draw that are
    at work: one per channel. A channel that its block keeps on chip is read once per pass less."""
    rate = stream_bytes_per_us(device)
    has_statistics = group.dims["statistics"] > 0
    reads, writes, kept_reads = _C.tuples("passes")[group.direction]
    channel_bytes, channels = group.dims["rows"] * group.item_bytes, group.dims["cols"]
    is_kept = kept_reads * channel_bytes <= _C.channel_kept_bytes
    at_once = np.minimum(channels, _C.channel_blocks_per_sm * device.sm_count)
    together = np.where(is_kept, 1.0, _C.channel_stream_frac) * rate
    drawn = np.minimum(together, at_once * _C.table("channel_bytes_per_us")[device.target])
    passes = writes + np.where(is_kept, kept_reads, reads)
    memory = passes * channel_bytes * channels / drawn
    memory = np.where(has_statistics, memory, group.moved_bytes / rate)
    blocks_us = np.where(has_statistics, _C.table("channel_block_us")[device.target], 0.0)
    latency = _C.channel_start_us + blocks_us * np.ceil(channels / at_once)
    bound = bound_us(group.moved_bytes, device)
    return group.analysis(
        bound_us=bound,
        kernel_us=np.maximum(memory, bound) + latency,
        shares={"memory": memory, "latency": latency},
    )


@analyse_by_group
def analyse_transfers(group: Group, device: Device) -> Analysis:
    """Bytes over PCIe or the link to the host or to a peer; `ranks` share the way to the host."""
    written, to_peer = group.written_bytes, group.op == "copy_p2p"
    peak = device.peer_gb_per_s if to_peer else device.host_gb_per_s
    through_buffer = (group.dims["pinned"] == 0) & (not to_peer)
    reached = _C.achieved_frac * peak
    shared = 1.0 if to_peer else np.maximum(group.dims["ranks"], 1.0)
    rate = np.minimum(np.where(through_buffer, _C.pageable_gb_per_s, np.inf), reached / shared)
    rate = rate * 1e3
    bound = np.maximum(written * shared / (peak * 1e3), written / hbm_bytes_per_us(device))
    link = written / rate
    return group.analysis(
        bound_us=bound,
        kernel_us=_C.transfer_start_us + link,
        shares={"link": link, "latency": np.full(len(written), _C.transfer_start_us)},
    )


@analyse_by_group
def analyse(group: Group, device: Device) -> Analysis:
    """Bytes at the memory's or the cache's rate, beside the vector units'."""
    total = group.read_bytes + group.written_bytes
    passes, missed = _read_again(group, device)
    memory = transfer_us(total, device) + (
        missed * group.read_bytes * missed_share(total, device)
    ) / stream_bytes_per_us(device)
    cache = (total + passes * group.read_bytes) / l2_bytes_per_us(device)
    elements = group.written_bytes / _C.element_bytes
    known = _C.table("special_per_element")
    each = known.get(f"{device.target}_{group.op}", known.get(group.op, 0.0))
    special = each * elements / special_per_us(device)
    flop = group.flop + _random_flop(group, device)
    compute = np.maximum(flop / vector_flop_per_us(device), special)
    bound = np.maximum(bound_us(total, device), group.flop / (2.0 * vector_flop_per_us(device)))
    busy = np.maximum(np.maximum(memory, cache), np.maximum(compute, bound))
    return group.analysis(
        bound_us=bound,
        kernel_us=_C.start_us + busy,
        shares={"compute": compute, "memory": memory, "cache": cache},
    )


def _random_flop(group: Group, device: Device) -> Floats:
    """Work of drawing the random numbers of a kernel that draws some."""
    if "random" not in group.dims:
        return np.zeros(len(group.index))
    calls: Floats = group.dims["random"] * group.dims["elements"]
    return calls * _C.table("random_flop")[device.target]


def _read_again(group: Group, device: Device) -> tuple[Floats, Floats]:
    if group.op not in ROW_KERNELS:
        return np.zeros(len(group.index)), np.zeros(len(group.index))
    rows, cols = group.dims["rows"], group.dims["cols"]
    return repeated_passes(group.op, resident_share(group.op, rows, cols, group.item_bytes, device))
