"""Physics of copies that leave the device."""

from __future__ import annotations

import numpy as np

from perfmodel.hardware import Device
from perfmodel.kernels.gpu.analysis import Analysis, Group, by_group
from perfmodel.kernels.gpu.machine import hbm_bytes_per_us

_ACHIEVED_FRAC = 0.82
"""Of the bus's rate, after packet headers. Source: PCIe 3.0 x16 copies of pinned memory, 12.9 of
15.75 GB/s; Lin et al. 2022 take 8.1 for pageable memory."""
_PAGEABLE_GB_PER_S = 6.0
"""One host thread copies through the driver's buffer, whatever the bus."""
_START_US = 1.5


@by_group
def analyse(group: Group, device: Device) -> Analysis:
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
        kernel_us=_START_US + link,
        shares={"link": link, "latency": np.full(len(written), _START_US)},
        flop=np.zeros(len(written)),
        read_bytes=group.read_bytes,
        written_bytes=written,
    )
