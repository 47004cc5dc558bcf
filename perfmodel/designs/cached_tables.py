"""Tables outside device memory, some of their rows nearer: of tables in host memory, rows in use or
popular on devices (software caches, RecShard, a cache in what a KV cache leaves); of tables on
drives, rows in host memory (software-defined memory)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.units import BYTES_PER_GB
from perfmodel.designs import settings
from perfmodel.designs.deployment import Deployment
from perfmodel.embedding import POLICIES, Placement, RowCache, TablePlacement, hot_set
from perfmodel.embedding.placement import HOST, STORAGE
from perfmodel.errors import WorkloadError
from perfmodel.hardware.parts import Storage
from perfmodel.workload.memory_tiers import CONTEXT_BYTES, shard_bytes
from perfmodel.workload.sharding import packed

MIN_FRAC = 1e-3  # of the rows, less than this is not tried in the place of more


@dataclass(frozen=True)
class SoftwareCache(settings.Checked, of="software_cache"):
    """Tables in host memory behind a cache of rows in device memory.

    `kept_by` `kernels` is FBGEMM's UVM caching, `operators` the frequency-aware
    cache of CachedEmbedding, which keeps the most popular rows. `cache_frac` of each rank's rows
    fit into its cache (FBGEMM's default: 0.2; CachedEmbedding's benchmark: 0.01; 0: every lookup
    goes over the bus). `rows_ahead`: rows are fetched during the step before. Tables that every
    rank has stay in device memory.
    """

    kept_by: Literal["kernels", "operators"] = "kernels"
    cache_frac: settings.Share = settings.budget(0.2, settings.halves(MIN_FRAC))
    policy: str = "lru"
    rows_ahead: bool = settings.step(False, plain=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        settings.require_known(self.of, "policy", self.policy, POLICIES)
        if self.rows_ahead and self.kept_by == "operators":
            raise WorkloadError(
                "software_cache: operators wait for every count, so no rows are fetched beside a "
                "step"
            )
        if self.cache_frac < settings.LEAST and self.kept_by == "operators":
            raise WorkloadError(
                "software_cache: operators look rows up in their cache alone: expected a "
                f"cache_frac from {settings.LEAST:g}, got {self.cache_frac:g}"
            )

    def apply(self, deployment: Deployment) -> Deployment:
        if deployment.machine.node.device.target == "cpu":
            raise WorkloadError(
                "software_cache: a CPU's device memory is its host's: nothing to keep closer"
            )
        held = deployment.table_bytes
        moved = [
            placed.tier == "hbm" and placed.sharding != "data_parallel"
            for placed in deployment.placement.tables
        ]
        total = sum(size for size, is_moved in zip(held, moved, strict=True) if is_moved)
        if not total:
            raise WorkloadError("software_cache: no table in device memory that could be cached")
        size = self.cache_frac * total / deployment.ranks
        about = self.policy, self.kept_by
        caches = (RowCache("rows", "hbm", size, *about),) if size else ()
        place = {"tier": HOST, "caches": tuple(each.name for each in caches)}
        placement = deployment.placement.edited(
            lambda number, _: place if moved[number] else {}, caches=caches
        )
        pipeline = replace(deployment.pipeline, rows_ahead=self.rows_ahead)
        note = f"software cache: {size / 1e9:.3g} GB of rows on each device"
        return deployment.with_(note, placement=placement, pipeline=pipeline)


CACHE = "popular"
MIN_GB = 0.1  # of popular rows, less than this is not tried in the place of more


@dataclass(frozen=True)
class RecShard(settings.Checked, of="recshard"):
    """RecShard: popular rows in device memory, the others in the host's; whole tables, by cost.

    The rows that are looked up most per byte, of all tables together, fill `hbm_gb` of each device
    (0: none) and stay there; tables go, the costliest first, to the rank that has least to read.
    What stays is a static set, so nothing is evicted. Source: Sethi et al., RecShard (ASPLOS 2022),
    abstract; its integer programme as a greedy assignment, assumed as good.
    """

    hbm_gb: settings.Amount = settings.budget(24.0, settings.halves(MIN_GB))

    def apply(self, deployment: Deployment) -> Deployment:
        capacity_bytes = self.hbm_gb * BYTES_PER_GB
        hot = hot_frac(deployment, capacity_bytes * deployment.ranks)
        device, sizes = deployment.machine.node.device, deployment.table_bytes
        tables = deployment.workload.tables
        read = np.array([t.pooling * s / t.rows for t, s in zip(tables, sizes, strict=True)])
        cost = read * (hot / device.hbm_gb_per_s + (1 - hot) / (device.pcie_gb_per_s or 1.0))
        held, _ = packed([(n, us, 0.0) for n, us in enumerate(cost.tolist())], deployment.ranks)
        ranks = {number: rank for rank, own in enumerate(held) for number in own}
        most_bytes = max(sum(sizes[number] for number in sorted(own)) for own in held)
        size = min(capacity_bytes, most_bytes)
        caches = (RowCache(CACHE, "hbm", size, "static"),) if size else ()
        names = tuple(each.name for each in caches)

        def edit(number: int, _placed: TablePlacement) -> dict[str, Any]:
            place = {"sharding": "table_wise", "ranks": (ranks[number],), "tier": "host"}
            return {**place, "pooled_on": "device", "hot_rows": 0, "caches": names}

        placed = deployment.placement.edited(edit, caches=caches).tables
        return deployment.with_(placement=Placement(placed, caches))


def hot_frac(deployment: Deployment, hbm_bytes: float) -> Floats:
    """Per table the share of lookups that go to rows within `hbm_bytes` of the most popular rows
    (per byte) of all tables."""
    pairs = zip(deployment.workload.tables, deployment.table_bytes, strict=True)
    one_sample = [table.access(table.pooling, size / table.rows) for table, size in pairs]
    return hot_set(one_sample, hbm_bytes).hot_frac


FREE_FRAC = 0.1  # assumed: of a device's memory, left for parameters and activations


@dataclass(frozen=True)
class SharedCache(settings.Checked, of="shared_cache"):
    """Tables in host memory; a KV cache takes device memory first, a cache of rows what it leaves.

    A language model beside the ranking model holds `kv_gib` of each device (0: none; assumed 16).
    A tenth of the device stays free for activations, and the cache under `policy` is as large as
    what is left, or all of a rank's rows: FBGEMM's, as in `software_cache`. What the language model
    itself takes of the device's time is not modelled.

    No peer answers it: models of serving know the KV cache alone, models of tables the rows.
    """

    kv_gib: settings.Amount = 16.0
    policy: str = "lru"

    def apply(self, deployment: Deployment) -> Deployment:
        node = deployment.machine.node
        left = node.device.hbm_bytes - self.kv_gib * 2**30
        room = left - FREE_FRAC * node.device.hbm_bytes - CONTEXT_BYTES
        if room <= 0:
            raise WorkloadError(
                f"shared_cache: a KV cache of {self.kv_gib:g} GiB leaves no rows room in the "
                f"{node.device.hbm_bytes / BYTES_PER_GB:.4g} GB of {node.device.name}"
            )
        device = replace(node.device, hbm_bytes=int(left))
        machine = replace(deployment.machine, node=replace(node, device=device))
        own_bytes = sum(deployment.table_bytes) / deployment.ranks
        cache = SoftwareCache(cache_frac=min(room / own_bytes, 1.0), policy=self.policy)
        note = f"shared_cache: {self.kv_gib:g} GiB of each device are the KV cache's"
        return cache.apply(deployment.with_(note, machine=machine))


GIB = 2**30
TRAINING = "rows that training writes"
MIN_GIB = 1 / 32  # of a cache, less than this is not tried in the place of more


@dataclass(frozen=True)
class SoftwareMemory(settings.Checked, of="software_memory"):
    """Tables on drives, their rows read by the host behind a cache of rows in its memory.

    `drive` and `drives` per node replace what the node has (`""`: its own). All tables move but
    replicas that training updates. `cache_gib` of each node's host memory (0: none) holds rows of
    those on drives, an equal part for each rank. `rows_ahead`: the next batch's rows are read
    during this step; `writes_behind`: rows go back during the next.

    Source: Ardestani et al., Supporting Massive DLRM Inference Through Software Defined Memory
    (arXiv 2110.11489): user tables, looked up once per query, move; item tables stay.
    """

    drive: str = "pm9a3"
    drives: settings.SomeCount = 2
    cache_gib: settings.Amount = settings.step(16.0, plain=0.0, less=settings.halves(MIN_GIB))
    rows_ahead: bool = settings.step(True, plain=False)
    writes_behind: bool = settings.step(True, plain=False, acts_on=TRAINING)

    parts: ClassVar = {"drive": Storage}

    def apply(self, deployment: Deployment) -> Deployment:
        held, tables = deployment.table_bytes, deployment.placement.tables
        moved = frozenset(
            number
            for number, placed in enumerate(tables)
            if not (deployment.train and placed.sharding == "data_parallel")
        )
        if not moved:
            raise WorkloadError("software_memory: replicas that training updates stay: none moves")
        fullest = _fullest(deployment, moved)
        machine = deployment.machine
        if self.drive:
            part = self.part(Storage, "drive", self.drive)
            machine = replace(machine, node=replace(machine.node, storage=part, drives=self.drives))
        node = machine.node
        if node.storage is None:
            raise WorkloadError(f"software_memory: {machine.name} has no drives: name a drive")
        drive = node.storage.name
        needed = sum(held[number] for number in moved)
        room = (node.storage.capacity_bytes or 0) * (node.drives or 1)
        if room and needed > room * machine.nodes:
            raise WorkloadError(
                f"software_memory: {needed / 1e9:.4g} GB of tables are larger than {node.drives} "
                f"{drive} on each of {machine.nodes} nodes"
            )
        cache_bytes = min(self.cache_gib * GIB / node.gpus, fullest)
        caches = [RowCache("rows in host memory", "host", cache_bytes)] if cache_bytes else []
        place = {
            "tier": STORAGE,
            "pooled_on": "host",
            "caches": tuple(cache.name for cache in caches),
        }
        note = (
            f"software-defined memory: {len(moved)} of {len(held)} tables on {node.drives} {drive} "
            "per node"
        )
        if cache_bytes == fullest:
            note += ", all their rows in the hosts' cache too: they could stay in host memory"
        ahead, behind = self.rows_ahead, self.writes_behind
        return deployment.with_(
            note,
            machine=machine,
            placement=deployment.placement.edited(
                lambda number, _: place if number in moved else {}, caches=tuple(caches)
            ),
            pipeline=replace(deployment.pipeline, rows_ahead=ahead, writes_behind=behind),
        )


def _fullest(deployment: Deployment, moved: frozenset[int]) -> float:
    """Bytes of rows that the rank with most has of the tables that move."""
    of_rank = [0.0] * deployment.ranks
    for number in moved:
        placed = deployment.placement.tables[number]
        size = shard_bytes(deployment.workload.tables[number], placed, None)
        for rank in placed.ranks:
            of_rank[rank] += size
    return max(of_rank)
