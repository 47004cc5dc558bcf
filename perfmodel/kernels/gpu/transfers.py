"""Physics of copies that leave the device."""

from __future__ import annotations

import numpy as np

from perfmodel.hardware import Device
from perfmodel.kernels.gpu.analysis import Analysis, merged
from perfmodel.kernels.gpu.machine import hbm_bytes_per_us
from perfmodel.ops.rows import Ints, Rows
from perfmodel.ops.spec import OPS

_ACHIEVED_FRAC = 0.82
"""Of the bus's rate, after packet headers. Source: PCIe 3.0 x16 copies of pinned memory, 12.9 of
15.75 GB/s; Lin et al. 2022 take 8.1 for pageable memory."""
_PAGEABLE_GB_PER_S = 6.0
"""One host thread copies through the driver's buffer, whatever the bus."""
_START_US = 1.5


def analyse(rows: Rows, device: Device) -> Analysis:
    """Bytes over PCIe or the link to the host or to a peer."""
    return merged(len(rows), [(index, _of(rows, op, index, device)) for op, index in rows.groups()])


def _of(rows: Rows, op: str, index: Ints, device: Device) -> Analysis:
    spec, dims = OPS[op], rows.dims_of(op, index)
    item = rows.item_bytes(index)
    read, written = spec.read_bytes(dims, item), spec.written_bytes(dims, item)
    peak = device.peer_gb_per_s if op == "copy_p2p" else device.host_gb_per_s
    through_buffer = (dims["pinned"] == 0) & (op != "copy_p2p")
    reached = _ACHIEVED_FRAC * peak
    rate = np.where(through_buffer, min(reached, _PAGEABLE_GB_PER_S), reached) * 1e3
    bound = np.maximum(written / (peak * 1e3), written / hbm_bytes_per_us(device))
    link = written / rate
    return Analysis(
        bound_us=bound,
        kernel_us=_START_US + link,
        shares={"link": link, "latency": np.full(len(index), _START_US)},
        flop=np.zeros(len(index)),
        read_bytes=read,
        written_bytes=written,
    )
