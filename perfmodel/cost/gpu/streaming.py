"""Physics of kernels that stream operands: bytes, caches, passes over rows, waiting threads."""

from __future__ import annotations

import numpy as np

from perfmodel.base.arrays import Floats, clipped
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
from perfmodel.ops.dtypes import item_bytes

_C = coefficients("gpu.streaming")
_AS = {"rms_norm": "layer_norm", "log_softmax": "softmax"}
"""Ops whose kernels go over their rows as another's."""
ROW_KERNELS = frozenset(_C.tuples("row_kernels")) | frozenset(_AS)


def resident_share(op: str, rows: Floats, cols: Floats, item: Floats, device: Device) -> Floats:
    """Bytes of the rows that are worked on at once over the L2's; 0 where one pass is enough."""
    _, least_threads, most_threads, register_cols = _C.tuples("row_kernels")[_AS.get(op, op)]
    threads = clipped(cols / _C.cols_per_thread, least_threads, most_threads)
    per_sm = (device.max_threads_per_sm or _C.usual_threads_per_sm) / threads
    at_once = np.minimum(rows, device.sm_count * np.maximum(per_sm, 1.0))
    share = at_once * cols * item / device.l2_bytes
    return np.where(cols > register_cols, share, 0.0)


def repeated_passes(op: str, resident: Floats) -> tuple[Floats, Floats]:
    """Passes over the row after the first: (all of them, those that go to memory), per row."""
    again, *_ = _C.tuples("row_kernels")[_AS.get(op, op)]
    missed = clipped((resident - _C.held_up_to) / (_C.gone_from - _C.held_up_to), 0.0, 1.0)
    return np.where(resident > 0.0, again, 0.0), again * missed


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
    passes, missed = np.zeros((2, len(group.index)))
    if group.op in ROW_KERNELS:
        own = group.dims["rows"], group.dims["cols"], group.item_bytes, device
        passes, missed = repeated_passes(group.op, resident_share(group.op, *own))
    memory = transfer_us(total, device) + (
        missed * group.read_bytes * missed_share(total, device)
    ) / stream_bytes_per_us(device)
    cache = (total + passes * group.read_bytes) / l2_bytes_per_us(device)
    elements = group.written_bytes / item_bytes(["fp32"])[0]
    known = _C.table("special_per_element")
    op = group.op.removesuffix("_scalar")
    each = known.get(f"{device.target}_{op}", known.get(op, 0.0))
    special = each * elements / special_per_us(device)
    random = group.dims.get("random", 0.0) * _C.table("random_flop")[device.target]
    flop = group.flop + random * group.dims.get("elements", 0.0)
    compute = np.maximum(flop / vector_flop_per_us(device), special)
    bound = np.maximum(bound_us(total, device), group.flop / (2.0 * vector_flop_per_us(device)))
    busy = np.maximum(np.maximum(memory, cache), np.maximum(compute, bound))
    return group.analysis(
        bound_us=bound,
        kernel_us=_C.start_us + busy,
        shares={"compute": compute, "memory": memory, "cache": cache},
    )
