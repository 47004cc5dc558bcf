"""Software-defined memory: tables on drives behind a cache of rows in host memory; serving."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from perfmodel.base.units import US_PER_S
from perfmodel.cost.tiers.drives import reads_per_s, unloaded_latency_us
from perfmodel.designs import settings
from perfmodel.designs.deployment import Deployment, Design
from perfmodel.embedding import POLICIES, RowCache, TablePlacement
from perfmodel.embedding.placement import EXPANSION, STORAGE
from perfmodel.errors import UsageError, WorkloadError
from perfmodel.hardware.parts import Storage
from perfmodel.timeline.offered import LoadLatency, Service, latency_under
from perfmodel.workload import Workload
from perfmodel.workload.memory_tiers import shard_bytes


@dataclass(frozen=True)
class UserSide:
    """What one query reads of tables on `drives` drives, at most `in_flight` reads at a time.

    Of `lookups` rows of `row_bytes`, a row cache answers `hit_frac`; `pooled_frac` of the queries'
    bags are found pooled.
    """

    drive: Storage
    drives: int
    lookups: float
    row_bytes: float
    hit_frac: float = 0.0
    pooled_frac: float = 0.0
    in_flight: int = 256

    def __post_init__(self) -> None:
        for frac in (self.hit_frac, self.pooled_frac):
            if not 0 <= frac <= 1:
                raise UsageError(f"serving: a share of {frac:g}: expected 0 to 1")
        if not (self.lookups > 0 and self.row_bytes > 0 and self.drives > 0 and self.in_flight > 0):
            raise UsageError("serving: lookups, bytes, drives and reads in flight: all above 0")

    @property
    def reads(self) -> float:
        """Per query."""
        return self.lookups * (1 - self.hit_frac) * (1 - self.pooled_frac)

    @property
    def read_us(self) -> float:
        """Between reads that the drives complete, when they have as many as the host keeps."""
        fastest_us = US_PER_S / (self.drives * float(reads_per_s(self.drive, self.row_bytes)))
        return max(fastest_us, unloaded_latency_us(self.drive) / self.in_flight)

    @property
    def most_queries_per_s(self) -> float:
        """That the drives can serve."""
        return US_PER_S / (self.read_us * self.reads) if self.reads else float("inf")

    def latency(self, queries_per_s: float) -> LoadLatency:
        """Of one query's reads, all handed over at once, beside those of the others."""
        count = max(self.reads, 1.0)
        one = Service(self.read_us, unloaded_latency_us(self.drive))
        return latency_under(one, queries_per_s, batches_per_query=count)

    def warm_up_s(self, queries_per_s: float, cache_bytes: float) -> float:
        """Until a row cache that is empty after an update of the model is full again."""
        rows_per_s = queries_per_s * self.lookups * (1 - self.hit_frac)
        return cache_bytes / (rows_per_s * self.row_bytes)


def query_us(user: LoadLatency, item_us: float, top_us: float) -> float | None:
    """The 99th percentile of a query whose user side is read during its items' lookups; None where
    the drives cannot keep up."""
    return None if user.p99_us is None else max(user.p99_us, item_us) + top_us


GIB = 2**30
MIN_GIB = 1 / 32  # of a cache, less than this is not tried in the place of more


@dataclass(frozen=True)
class SoftwareMemory(settings.Checked, of="software_memory"):
    """Tables on drives, their rows read by the host behind a cache of rows in its memory.

    `drive` and `drives` per node replace what the node has (`""`: its own). Tables with the fewest
    lookups per byte move first, until those that stay take at most `keep_gib` per rank; replicas
    that training updates stay. Expansion memory (`[expansion]` in a machine's file) takes those
    looked up most per byte of what moves. `cache_gib` of each node's host memory holds rows of
    those on drives, an equal part for each rank. `rows_ahead`: the next batch's rows are read
    during this step; `writes_behind`: rows go back during the next. In inference, moved tables are
    looked up once per `items_per_query` samples (a user's features are those of all items; pooled
    rows are still sent per item), and `pooled_frac` of what they pool is found pooled.

    Source: Ardestani et al., Supporting Massive DLRM Inference Through Software Defined Memory
    (arXiv 2110.11489): user tables, looked up once per query, move; item tables stay.
    """

    drive: str = "pm9a3"
    drives: settings.SomeCount = 2
    keep_gib: settings.Amount = 0.0
    cache_gib: settings.SomeAmount = 16.0
    policy: str = "lru"
    rows_ahead: bool = True
    writes_behind: bool = True
    device_cache_gib: settings.Amount = 0.0
    items_per_query: settings.SomeCount = 1
    pooled_frac: settings.PartShare = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        settings.require_known(self.of, "policy", self.policy, POLICIES)
        if self.drive:
            settings.named_part(self.drive, Storage, "software_memory.drive")

    def apply(self, deployment: Deployment) -> Deployment:
        """The tables that are worth least in fast memory to drives."""
        held, kept_bytes = deployment.table_bytes, self.keep_gib * GIB * deployment.ranks
        moved = self._moved(deployment, held, kept_bytes)
        if not moved and sum(held) > kept_bytes:
            raise WorkloadError("software_memory: replicas that training updates stay: none moves")
        if not moved:
            raise WorkloadError(f"software_memory: all tables fit into {self.keep_gib:g} GiB")
        fullest = _fullest(deployment, moved)
        machine, memory = deployment.machine, deployment.machine.node.expansion
        beside = deployment.fitting(sorted(moved), memory.capacity_bytes) if memory else frozenset()
        on_drives = moved - beside
        if on_drives and self.drive:
            part = settings.named_part(self.drive, Storage, "software_memory.drive")
            machine = replace(machine, node=replace(machine.node, storage=part, drives=self.drives))
        node = machine.node
        if on_drives and node.storage is None:
            raise WorkloadError(f"software_memory: {machine.name} has no drives: name a drive")
        drive = node.storage.name if node.storage else "no drive"
        needed = sum(held[number] for number in on_drives)
        room = ((node.storage and node.storage.capacity_bytes) or 0) * (node.drives or 1)
        if room and needed > room * machine.nodes:
            raise WorkloadError(
                f"software_memory: {needed / 1e9:.4g} GB of tables are larger than {node.drives} "
                f"{drive} on each of {machine.nodes} nodes"
            )
        cache_bytes = min(self.cache_gib * GIB / node.gpus, fullest)
        caches = [RowCache("rows in host memory", "host", cache_bytes, self.policy)]
        if (closer := self.device_cache_gib * GIB) >= cache_bytes:
            raise WorkloadError(
                f"software_memory: a cache of {self.device_cache_gib:g} GiB on each device: "
                f"expected less than the host's {cache_bytes / GIB:.3g} GiB for each"
            )
        if closer:
            caches.insert(0, RowCache("rows in device memory", "hbm", closer))
        place = {
            "pooled_on": "device" if closer else "host",
            "caches": tuple(cache.name for cache in caches),
        }

        def edit(number: int, _placed: TablePlacement) -> dict[str, Any]:
            tier = EXPANSION if number in beside else STORAGE
            return {"tier": tier, **place} if number in moved else {}

        places = []
        if memory and beside:
            places.append(f"{len(beside)} of {len(held)} tables in {memory.name}")
        if on_drives:
            count = f"{len(on_drives)} of {len(held)}"
            places.append(f"{count} tables on {node.drives} {drive} per node")
        note = f"software-defined memory: {', '.join(places)}"
        if cache_bytes == fullest:
            note += ", all their rows in the hosts' cache too: they could stay in host memory"
        ahead, behind = self.rows_ahead, self.writes_behind
        return deployment.with_(
            note,
            workload=self._asked(deployment, moved),
            machine=machine,
            placement=deployment.placement.edited(edit, caches=tuple(caches)),
            pipeline=replace(deployment.pipeline, rows_ahead=ahead, writes_behind=behind),
        )

    def within(self, deployment: Deployment) -> Iterable[Design]:
        """With a smaller cache of the host, without the device's, without tables that stay."""
        own = (self.cache_gib, self.device_cache_gib, self.keep_gib)
        for cache in (self.cache_gib, *settings.halved(self.cache_gib, MIN_GIB)):
            for closer in dict.fromkeys((self.device_cache_gib, 0.0)):
                for kept in dict.fromkeys((self.keep_gib, 0.0)):
                    sizes = (cache, closer, kept)
                    if closer < cache and sizes != own:
                        yield replace(self, cache_gib=cache, device_cache_gib=closer, keep_gib=kept)

    def _asked(self, deployment: Deployment, moved: frozenset[int]) -> Workload:
        """The workload with what of the moved tables is really looked up."""
        asked_frac = (1 - self.pooled_frac) / self.items_per_query
        if asked_frac == 1:
            return deployment.workload
        if deployment.train:
            raise WorkloadError(
                "software_memory: training updates the rows of every sample: items_per_query and "
                "pooled_frac are of inference"
            )
        tables = list(deployment.workload.tables)
        for number in moved:
            tables[number] = replace(tables[number], pooling=tables[number].pooling * asked_frac)
        return replace(deployment.workload, tables=tuple(tables))

    def _moved(
        self, deployment: Deployment, held: list[float], kept_bytes: float
    ) -> frozenset[int]:
        """Numbers of the tables on drives: fewest lookups per byte first."""
        tables, left, moved = deployment.workload.tables, sum(held), []
        for number in sorted(range(len(tables)), key=lambda n: tables[n].pooling / held[n]):
            sharding = deployment.placement.tables[number].sharding
            is_free = not (deployment.train and sharding == "data_parallel")
            if is_free and left > kept_bytes:
                moved.append(number)
                left -= held[number]
        return frozenset(moved)


def _fullest(deployment: Deployment, moved: frozenset[int]) -> float:
    """Bytes of rows that the rank with most has of the tables that move."""
    of_rank = [0.0] * deployment.ranks
    for number in moved:
        placed = deployment.placement.tables[number]
        size = shard_bytes(deployment.workload.tables[number], placed, None)
        for rank in placed.ranks:
            of_rank[rank] += size
    return max(of_rank)
