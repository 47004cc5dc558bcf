"""Software-defined memory: tables on drives behind a cache of rows in host memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from perfmodel.designs import settings
from perfmodel.designs.deployment import Deployment
from perfmodel.embedding import RowCache
from perfmodel.embedding.placement import STORAGE
from perfmodel.errors import WorkloadError
from perfmodel.hardware.parts import Storage
from perfmodel.workload.memory_tiers import shard_bytes

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
