"""Several collectives at once on the same wires, and what a collective takes from compute."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from perfmodel.arrays import Floats
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.collectives.algorithms import MOST_RING_RANKS
from perfmodel.cost.collectives.calls import Calls, calls_of, fabric_of
from perfmodel.cost.collectives.heuristic import costs_of
from perfmodel.errors import ModelError
from perfmodel.hardware import Cluster, Device, Node
from perfmodel.ops.rows import Rows

_C = coefficients("collectives.sharing")
_EXCHANGES = ("all_to_all", "send_recv")


def with_shared_links(calls: Calls, at_once: Floats | float) -> Calls:
    """`calls` with the rates that remain when `at_once` of them share links and adapters evenly.

    Latencies stay. Raises `ModelError` for fewer than one.
    """
    count = np.broadcast_to(np.asarray(at_once, np.float64), (len(calls),))
    if not (np.isfinite(count) & (count >= 1)).all():
        raise ModelError("shared: expected at least one collective at a time")
    return replace(
        calls,
        link_gb_per_s=calls.link_gb_per_s / count,
        nic_gb_per_s=calls.nic_gb_per_s / count,
        rank_nic_gb_per_s=calls.rank_nic_gb_per_s / count,
    )


@dataclass(frozen=True)
class DeviceShares:
    """What collectives take from concurrent kernels, per call: shares of the whole device."""

    sm_frac: Floats
    """Multiprocessors that their thread blocks hold. Kernels of compute do not share those.
    Source: NCCL's maintainers, github.com/NVIDIA/nccl, issue 689."""
    held_frac: Floats
    """The same while a rank waits for others. Of an exchange only the blocks of who is late
    stay (assumed: one of the others)."""
    hbm_frac: Floats
    """Device memory's bandwidth as far as it can be reached, while bytes move."""
    delay_us: Floats
    """By which a kernel that reads is longer during the transfer."""
    wire_frac: Floats
    """Of the transfer's time alone, what its bytes take on links or adapters, as far as these can
    be reached: the rest waits for hops, messages and the filling of buffers."""


def device_shares_of_calls(calls: Calls, duration_us: Floats, device: Device) -> DeviceShares:
    """What `calls` that transfer for `duration_us` take on `device`."""
    rate, most = _C.tuples("channels").get(device.target, (0.0, 0.0))
    by_link = np.clip(calls.link_gb_per_s * rate, _C.least_channels, most)
    by_size = np.maximum(np.ceil(calls.size_bytes / _C.channel_bytes), 1.0)
    sm_frac = np.minimum(by_link, by_size) / device.sm_count
    late = np.where(np.isin(calls.op, _EXCHANGES), np.maximum(calls.ranks - 1, 1.0), 1.0)
    ops = calls.op.tolist()
    passes = np.array([_C.table("passes").get(op, _C.ring_passes) for op in ops])
    in_switch = calls.has_multicast & (calls.local > MOST_RING_RANKS)
    turns = np.where(in_switch, 1.0, np.array([_C.table("turns").get(op, 1.0) for op in ops]))
    sent = calls.size_bytes * (calls.ranks - 1) / calls.ranks * turns
    gb_per_s = sent / np.maximum(duration_us, 1e-9) / 1e3
    reached = device.stream_gb_per_s
    costs = costs_of(calls)
    return DeviceShares(
        sm_frac=np.minimum(sm_frac, 1.0),
        held_frac=np.minimum(sm_frac / late, 1.0),
        hbm_frac=np.minimum(gb_per_s * passes / reached, 1.0),
        delay_us=np.minimum(gb_per_s, calls.link_gb_per_s) * _C.delay_us_per_gb_per_s,
        wire_frac=np.maximum(costs.link_us, costs.net_us) / costs.total_us,
    )


def device_shares_of_rows(rows: Rows, machine: Node | Cluster, duration_us: Floats) -> DeviceShares:
    """What `rows` (ops of the family `collective`) of `duration_us` take from a device of
    `machine`; raises `ModelError` as `collective_durations` does."""
    node = machine.node if isinstance(machine, Cluster) else machine
    return device_shares_of_calls(calls_of(rows, fabric_of(machine)), duration_us, node.device)
