"""Durations of collectives on a machine, alike and with a length per pair of ranks; and what one
takes from compute.

What counts is the busiest resource: the links of one rank, and the adapters of one domain, sending
or receiving. Source of taking the maximum over ranks and ways: Lin et al., TPDS 2024.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from perfmodel.base.arrays import Floats
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.collectives.algorithms import MAX_RING_RANKS, costs_of
from perfmodel.cost.collectives.calls import calls_of, fabric_of
from perfmodel.cost.collectives.learned import Learned, shipped
from perfmodel.cost.contract import Estimate, Explanation
from perfmodel.errors import ModelError
from perfmodel.hardware import Cluster, Node
from perfmodel.ops.rows import Rows

_C = coefficients("collectives.sharing")
_EXCHANGES = ("all_to_all", "send_recv")


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
    late = np.where(np.isin(calls.op, _EXCHANGES), np.maximum(calls.ranks - 1, 1.0), 1.0)
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


def uneven_all_to_all(
    sends_bytes: ArrayLike, machine: Node | Cluster, nodes: int = 1, *, model: Learned | None = None
) -> Estimate:
    """Duration of one all-to-all of `sends_bytes` `[from, to]`, ranks filling nodes one by one: of
    the even one that takes as long as the busiest rank, and beyond a domain the busiest adapters,
    unless links are what the even one waits for.

    Raises `ModelError` for a matrix or ranks that cannot be.
    """
    model = model or shipped()
    ranks = len(busiest_bytes(sends_bytes)[0])
    row = {"op": "all_to_all", "size_bytes": 1.0, "ranks": ranks, "nodes": nodes}
    call = calls_of(Rows.of([row]), fabric_of(machine))
    by_rank, by_domain = busiest_bytes(sends_bytes, int(call.domains[0]))
    size = by_rank.max() * ranks / max(ranks - 1, 1)
    if call.domains[0] > 1:
        local = float(call.local[0])
        of_adapters = by_domain.max() * ranks / (local * (ranks - local))
        call = replace(call, size_bytes=np.array([max(size, of_adapters, 1.0)]))
        costs = costs_of(call, model.constants)
        share = float(costs.link_us[0] / max(costs.net_us[0], 1e-9))
        size = max(of_adapters, size * min(share, 1.0))
    return model.estimate(replace(call, size_bytes=np.array([max(float(size), 1.0)])))


def busiest_bytes(sends_bytes: ArrayLike, domains: int = 1) -> tuple[Floats, Floats]:
    """Of each rank and each domain, bytes sent to or received from others, whichever are more.

    `sends_bytes` `[from, to]`; ranks fill the domains one by one. Raises `ModelError` for a matrix
    that is not square, or has a negative or infinite length.
    """
    sends = np.asarray(sends_bytes, np.float64)
    if sends.ndim != 2 or sends.shape[0] != sends.shape[1] or len(sends) < 1:
        raise ModelError(f"all_to_allv: expected bytes [from, to], got the shape {sends.shape}")
    bad = np.argwhere(~(np.isfinite(sends) & (sends >= 0)))
    if len(bad):
        source, target = bad[0]
        raise ModelError(
            f"all_to_allv: rank {source} sends {sends[source, target]} bytes to rank {target}"
        )
    where = np.arange(len(sends)) * domains // len(sends)
    between = np.zeros((domains, domains))
    np.add.at(between, (where[:, None], where[None, :]), sends)
    others = (each * (1.0 - np.eye(len(each))) for each in (sends, between))
    of_ranks, of_domains = (np.maximum(each.sum(axis=1), each.sum(axis=0)) for each in others)
    return of_ranks, of_domains
