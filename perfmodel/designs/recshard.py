"""RecShard: each table split by the popularity of its rows between device and host memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from perfmodel.designs.budget import halved
from perfmodel.designs.deployment import DESIGNS, Deployment, Design
from perfmodel.errors import WorkloadError
from perfmodel.ops.storage import item_bytes
from perfmodel.placement import Placement, RowCache
from perfmodel.units import BYTES_PER_GB

CACHE = "popular"
LEAST_GB = 0.1
"""Of popular rows, less than this is not tried in the place of more."""
Floats = NDArray[np.float64]


@DESIGNS.register("recshard")
@dataclass(frozen=True)
class RecShard:
    """RecShard: popular rows in device memory, the others in the host's; whole tables, by cost.

    The rows that are looked up most per byte, of all tables together, fill `hbm_gb` of each device
    and stay there; tables go, the costliest first, to the rank that has least to read. What stays
    is a static set, so nothing is evicted. Source: Sethi et al., RecShard (ASPLOS 2022), abstract;
    its integer programme as a greedy assignment, assumed as good.
    """

    hbm_gb: float = 24.0

    def __post_init__(self) -> None:
        if not 0.0 < self.hbm_gb < np.inf:
            raise WorkloadError(f"recshard: {self.hbm_gb:g} GB of device memory: expected more")

    def apply(self, deployment: Deployment) -> Deployment:
        """All tables in host memory, their popular rows in a static cache of device memory."""
        capacity_bytes = self.hbm_gb * BYTES_PER_GB
        if capacity_bytes > deployment.machine.node.device.hbm_bytes:
            raise WorkloadError(f"recshard: {self.hbm_gb:g} GB are more than the device has")
        cost = read_us(deployment, hot_fracs(deployment, capacity_bytes * deployment.ranks))
        ranks = shared_out(cost, deployment.ranks)
        tables = tuple(
            replace(
                placed,
                sharding="table_wise",
                ranks=(int(rank),),
                tier="host",
                pooled_on="device",
                hot_rows=0,
                caches=(CACHE,),
            )
            for placed, rank in zip(deployment.placement.tables, ranks, strict=True)
        )
        sizes = row_bytes_of(deployment) * [table.rows for table in deployment.workload.tables]
        most_bytes = np.bincount(ranks, sizes, deployment.ranks).max()
        cache = RowCache(CACHE, "hbm", min(capacity_bytes, float(most_bytes)), "static")
        return deployment.with_(placement=Placement(tables, (cache,)))

    def within(self, deployment: Deployment) -> Iterable[Design]:
        """With fewer rows in device memory."""
        return [replace(self, hbm_gb=size) for size in halved(self.hbm_gb, LEAST_GB)]


def hot_fracs(deployment: Deployment, hbm_bytes: float) -> Floats:
    """Per table the share of lookups that go to rows within `hbm_bytes` of the most popular rows
    (per byte) of all tables."""
    rates, sizes, owner, shares = [], [], [], []
    for number, (table, row) in enumerate(
        zip(deployment.workload.tables, row_bytes_of(deployment), strict=True)
    ):
        popularity = table.popularity()
        rates.append(popularity.chance * table.pooling / row)
        sizes.append(popularity.rows * row)
        shares.append(popularity.share)
        owner.append(np.full(len(popularity.rows), number))
    rate, size, share = np.concatenate(rates), np.concatenate(sizes), np.concatenate(shares)
    order = np.argsort(-rate, kind="stable")
    before = np.concatenate([[0.0], np.cumsum(size[order])[:-1]])
    kept = np.clip((hbm_bytes - before) / size[order], 0.0, 1.0)
    tables = np.concatenate(owner)[order]
    found = np.bincount(tables, kept * share[order], len(deployment.workload.tables))
    return np.minimum(found, 1.0)


def read_us(deployment: Deployment, hot: Floats) -> Floats:
    """Per table what its lookups read of device memory and over the bus, one after the other."""
    device = deployment.machine.node.device
    moved = np.array([table.pooling for table in deployment.workload.tables])
    moved = moved * row_bytes_of(deployment) * deployment.batch
    bus = (device.pcie_gb_per_s or 1.0) * 1e3
    return np.asarray(moved * (hot / (device.hbm_gb_per_s * 1e3) + (1 - hot) / bus))


def row_bytes_of(deployment: Deployment) -> Floats:
    """Per table the bytes of a stored row."""
    dtypes = [placed.dtype for placed in deployment.placement.tables]
    dims = np.array([table.dim for table in deployment.workload.tables], np.float64)
    return dims * np.asarray(item_bytes(dtypes))


def shared_out(cost: Floats, ranks: int) -> NDArray[np.int64]:
    """Per table a rank: the largest first, each to the rank with the least so far."""
    load, found = np.zeros(ranks), np.zeros(len(cost), np.int64)
    for number in np.argsort(-cost, kind="stable").tolist():
        found[number] = int(load.argmin())
        load[found[number]] += cost[number]
    return found
