"""Durations of collectives on a machine, and what one takes from compute."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.collectives.algorithms import MAX_RING_RANKS, costs_of
from perfmodel.cost.collectives.calls import calls_of, fabric_of
from perfmodel.cost.collectives.learned import Learned, shipped
from perfmodel.cost.contract import Estimate, Explanation
from perfmodel.hardware import Cluster, Node
from perfmodel.ops.rows import Rows

_C = coefficients("collectives.sharing")


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


def device_shares_of_rows(rows: Rows, machine: Node | Cluster, duration_us: Floats) -> DeviceShares:
    """What `rows` (ops of the family `collective`) that transfer for `duration_us` take from a
    device of `machine`; raises `ModelError` as `collective_durations` does."""
    device = (machine.node if isinstance(machine, Cluster) else machine).device
    calls = calls_of(rows, fabric_of(machine))
    rate, most = _C.tuples("channels").get(device.target, (0.0, 0.0))
    by_link = np.clip(calls.link_gb_per_s * rate, _C.least_channels, most)
    by_size = np.maximum(np.ceil(calls.size_bytes / _C.channel_bytes), 1.0)
    sm_frac = np.minimum(by_link, by_size) / device.sm_count
    is_exchange = np.isin(calls.op, ["all_to_all", "send_recv"])
    late = np.where(is_exchange, np.maximum(calls.ranks - 1, 1.0), 1.0)
    ops = calls.op.tolist()
    passes = np.array([_C.table("passes").get(op, _C.ring_passes) for op in ops])
    in_switch = calls.has_multicast & (calls.local > MAX_RING_RANKS)
    turns = np.where(in_switch, 1.0, np.array([_C.table("turns").get(op, 1.0) for op in ops]))
    sent = calls.size_bytes * (calls.ranks - 1) / calls.ranks * turns
    gb_per_s = sent / np.maximum(duration_us, 1e-9) / 1e3
    costs = costs_of(calls, shipped().constants)
    return DeviceShares(
        sm_frac=np.minimum(sm_frac, 1.0),
        held_frac=np.minimum(sm_frac / late, 1.0),
        hbm_frac=np.minimum(gb_per_s * passes / device.stream_gb_per_s, 1.0),
        delay_us=np.minimum(gb_per_s, calls.link_gb_per_s) * _C.delay_us_per_gb_per_s,
        wire_frac=np.maximum(costs.link_us, costs.net_us) / costs.total_us,
    )


def collective_durations(
    rows: Rows, machine: Node | Cluster, *, model: Learned | None = None
) -> Estimate:
    """Durations of `rows` (ops of the family `collective`) among ranks of `machine`.

    A row says by `ranks` and `nodes` who takes part. `model` is by default the shipped one, or such
    as was calibrated on the machine. Raises `ModelError` for rows that cannot be, such as several
    nodes without a network adapter.
    """
    return (model or shipped()).estimate(calls_of(rows, fabric_of(machine)))


def explain_collectives(
    rows: Rows, machine: Node | Cluster, *, model: Learned | None = None
) -> list[Explanation]:
    """Why `rows` take what they take, one by one."""
    return (model or shipped()).explain(calls_of(rows, fabric_of(machine)))
