"""SmartNICs: hot rows and their sums in the network adapters (Guo et al., ICS 2023)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.collectives.calls import codec
from perfmodel.cost.tiers.nic import NIC_CACHES
from perfmodel.cost.tiers.nic.engine import adapter, adapters_per_rank
from perfmodel.cost.tiers.nic.footprint import AS_THEY_COME
from perfmodel.designs.deployment import DESIGNS, Deployment, Design, halved, named_part
from perfmodel.embedding import POLICIES, RowCache
from perfmodel.embedding.reorder import ORDERS
from perfmodel.errors import WorkloadError
from perfmodel.hardware import Cluster, Nic
from perfmodel.ops.storage import row_bytes
from perfmodel.workload.adapter_caches import adapter_use
from perfmodel.workload.sharding import plan_of_placement
from perfmodel.workload.step import Run

_ENGINE = coefficients("tiers.engine")


def worth_asking(deployment: Deployment) -> list[bool]:
    """Per table whether an adapter reads and adds up the rows of one bag, and brings their sum over
    the bus to the device, sooner than the sum comes over the wire."""
    nic, share = adapter(deployment.machine), adapters_per_rank(deployment.machine)
    assert nic.memory_gb_per_s is not None
    reading, wire = _ENGINE.memory_frac * nic.memory_gb_per_s * share, nic.gb_per_s * share
    bus = _ENGINE.bus_frac * deployment.machine.node.device.host_gb_per_s
    sent = codec(deployment.workload.implementation.exchange_precision)
    found, burst = [], _ENGINE.burst_bytes
    for table, where in zip(deployment.workload.tables, deployment.placement.tables, strict=True):
        size = float(row_bytes(where.dtype, table.dim))
        parts = len(where.ranks) if where.sharding == "row_wise" else 1
        read = max(table.pooling / parts, 1.0) * np.ceil(size / burst) * burst
        vector = float(sent.wire_bytes(np.array([float(table.dim)]), table.dim)[0])
        found.append(bool(max(read / reading, vector / bus) < vector / wire))
    return found


def worth_writing(deployment: Deployment, lookups: float) -> list[float]:
    """Per table, bytes of the rows that each rank's batch looks up so often or more; 0 where these
    spare fewer vectors than they are: answers to whole bags, or of a table in rows the sums of
    bags of which a rank has no other row."""
    found = []
    samples = deployment.batch // deployment.ranks
    pairs = zip(deployment.workload.tables, deployment.placement.tables, strict=True)
    for table, where in pairs:
        popularity = table.popularity()
        is_hot = popularity.chance * table.lookups(samples) >= lookups
        rows, share = float(popularity.rows[is_hot].sum()), float(popularity.share[is_hot].sum())
        parts = len(where.ranks)
        if where.sharding == "row_wise":
            sent = [(1.0 - frac / parts) ** table.pooling for frac in (1.0, 1.0 - share)]
            spared = samples * parts * (sent[1] - sent[0])
        else:
            spared = samples * (share if table.key_rows else share ** max(table.pooling, 1.0))
        size = float(row_bytes(where.dtype, table.dim))
        found.append(rows * size if spared > rows * lookups else 0.0)
    return found


def adapter_shares(deployment: Deployment) -> list[float]:
    """Per table the share of all its lookups that adapters answer, as the first rank sees it.

    What local caches find of tables that it does not hold is taken from those that it does.
    """
    machine, tables = deployment.machine, deployment.workload.tables
    ranks, linked = deployment.ranks, machine.linked_gpus
    layout = plan_of_placement(deployment.workload, deployment.placement, ranks, linked)
    run = Run(
        workload=deployment.workload,
        batch=deployment.batch // ranks,
        ranks=ranks,
        rank=0,
        target=machine.node.device.target,
        train=deployment.train,
        plan=layout,
        linked=linked,
        placement=deployment.placement,
    )
    use = adapter_use(run)
    if use is None:
        return [0.0] * len(tables)
    own = {shard.table for shard in layout.shards[0]}
    asked = sum(use.tables[number].asked_frac for number in own)
    local = sum(use.tables[number].left_frac for number in own) / asked if asked else 1.0
    apart = 1.0 - linked / ranks
    return [
        apart * (1.0 - (each.left_frac if number in own else each.asked_frac * local))
        if any(name.startswith("nic") for name in deployment.placement.tables[number].caches)
        else 0.0
        for number, each in enumerate(use.tables)
    ]


LEAST_GIB = 1 / 16
"""Of rows in an adapter, less than this is not tried in the place of more."""
WHOLE = ("table_wise", "column_wise")


@DESIGNS.register("smartnic")
@dataclass(frozen=True)
class SmartNic:
    """Hot rows in the adapters' memory: of the own tables, and of other ranks'; sums made there.

    `adapter`: a name of the catalogue, in place of the machine's (empty: its own). Of its memory
    `cache_gib` holds rows (0: half), `remote_frac` of them other ranks'. `order`: of a batch's
    queries (`as_they_come`, `walked`, `clustered`). `hits_by`: the model of what caches find
    (`learned`, `heuristic`). `whole_bags`: rows are read only for bags that a cache has whole,
    whose answers it spares; else for all that it finds, as in a local cache, which spares device
    reads alone. Which
    share is whose is not published: assumed half.

    `only_if_worth`: rows of other ranks only of tables whose bags an adapter adds up sooner than
    their sums come over the wire, and none of one's own: the device has hot ones in its L2.
    Tables in rows on all devices are served where no table is whole: a rank then sends
    vectors only of bags of which it looked up a row, and the adapter adds them up.
    In training a remote cache holds only rows that a rank's batch looks up `kept_lookups` times or
    more, of tables where that spares as many answers as it takes writes: each step writes every row
    that it changed through to every adapter. assumed: 1, where a write costs what a lookup saves.
    A local cache is `kept_in_training` only if asked for: it takes writes over the bus.
    """

    adapter: str = ""
    cache_gib: float = 0.0
    remote_frac: float = 0.5
    policy: str = "lru"
    order: str = AS_THEY_COME
    hits_by: str = "learned"
    whole_bags: bool = True
    only_if_worth: bool = True
    kept_lookups: float = 1.0
    kept_in_training: bool = False

    def __post_init__(self) -> None:
        for name, value, known in (
            ("policy", self.policy, POLICIES),
            ("order", self.order, (AS_THEY_COME, *ORDERS)),
            ("hits_by", self.hits_by, NIC_CACHES),
        ):
            if value not in known:
                raise WorkloadError(
                    f"smartnic: unknown {name} {value!r}: one of {', '.join(known)}"
                )
        if not 0.0 <= self.remote_frac <= 1.0 or not 0.0 <= self.cache_gib < float("inf"):
            raise WorkloadError(
                f"smartnic: {self.cache_gib:g} GiB of rows, {self.remote_frac:g} of them remote"
            )
        if not self.kept_lookups >= 0.0:
            raise WorkloadError(f"smartnic: rows of {self.kept_lookups:g} lookups and more")
        if self.adapter:
            named_part(self.adapter, Nic, "smartnic.adapter")

    def apply(self, deployment: Deployment) -> Deployment:
        """Caches for all whole tables (or columns) in device memory; `deployment` as it is, with a
        note that says why, where no cache is worth its place."""
        if deployment.ranks == deployment.machine.linked_gpus:
            raise WorkloadError("smartnic: links join all devices: no lookup crosses an adapter")
        plain, before = deployment, deployment.machine
        machine = with_adapter(before, self.adapter)
        tables = deployment.placement.tables
        free = [table.tier == "hbm" and not table.caches for table in tables]
        served = [f and t.sharding in WHOLE for f, t in zip(free, tables, strict=True)]
        in_rows = not any(served)
        if in_rows:
            served = [
                is_free and table.sharding == "row_wise" and len(table.ranks) == deployment.ranks
                for is_free, table in zip(free, tables, strict=True)
            ]
        if not any(served):
            raise WorkloadError(
                "smartnic: no table in device memory is whole or in columns and without a cache, "
                "nor in rows on all devices"
            )
        total = self._bytes(machine)
        sizes = {"nic_local": 1.0 - self.remote_frac, "nic_remote": self.remote_frac}
        sizes = {at: total * share for at, share in sizes.items()}
        policies = dict.fromkeys(sizes, self.policy)
        shared = list(served)
        deployment = deployment.with_(machine=machine)
        if self.only_if_worth:
            pays = worth_asking(deployment)
            shared = [each and worth for each, worth in zip(shared, pays, strict=True)]
            sizes["nic_local"] = 0.0
        if deployment.train:
            hot = worth_writing(deployment, self.kept_lookups)
            shared = [each and size > 0 for each, size in zip(shared, hot, strict=True)]
            most = sum(size for each, size in zip(shared, hot, strict=True) if each)
            sizes["nic_remote"] = min(sizes["nic_remote"], most)
            sizes["nic_local"] *= self.kept_in_training
            policies["nic_remote"] = "static"
        if not any(shared):
            sizes["nic_remote"] = 0.0
        caches = tuple(
            RowCache(
                at,
                at,
                size,
                policies[at],
                order=self.order,
                hits_by=self.hits_by,
                whole_bags=self.whole_bags and at == "nic_remote" and not in_rows,
            )
            for at, size in sizes.items()
            if size > 0
        )
        if not caches:
            return plain.with_(
                "smartnic: not applied, the step is as without it: rows cached in the adapters "
                "save no time: their memory is no faster than the path it replaces, or rows are "
                "written as often as they are looked up "
                "(smartnic.only_if_worth=false caches them anyway)"
            )
        names = tuple(cache.name for cache in caches)
        own = tuple(name for name in names if name != "nic_remote")
        placement = deployment.placement.edited(
            lambda n, _: {"caches": names if shared[n] else own} if served[n] else {}, caches=caches
        )
        held = ", ".join(f"{cache.at} {cache.capacity_bytes / 2**30:.3g} GiB" for cache in caches)
        note = (
            f"smartnic: rows in each adapter: {held}; assumed: partial sums added in the adapter, "
            "rows written through"
        )
        notes = [note, *_other_wire(before, machine)]
        return deployment.with_(*notes, placement=placement)

    def within(self, deployment: Deployment) -> Iterable[Design]:
        """With fewer rows in the adapters."""
        most = self._bytes(with_adapter(deployment.machine, self.adapter)) / 2.0**30
        return [replace(self, cache_gib=size) for size in halved(most, LEAST_GIB)]

    def _bytes(self, machine: Cluster) -> float:
        """Of rows on each rank's share of the adapters."""
        node = machine.node
        assert node.nic is not None
        memory = (node.nic.memory_bytes or 0) * (node.nics or 1) / node.gpus
        asked = self.cache_gib * 2.0**30 or memory / 2
        if asked > memory:
            raise WorkloadError(
                f"smartnic: {asked / 2**30:.3g} GiB of rows: {node.nic.name} has "
                f"{memory / 2**30:.3g} GiB per rank"
            )
        return asked


def _other_wire(before: Cluster, after: Cluster) -> list[str]:
    """What a user should know where the adapter's wire is another one as well."""
    old, new = before.node.nic, after.node.nic
    if old is None or new is None or old.gb_per_s == new.gb_per_s:
        return []
    return [f"smartnic: its wire has {new.gb_per_s:g} GB/s, that of {old.name} {old.gb_per_s:g}"]


def with_adapter(machine: Cluster, name: str) -> Cluster:
    """`machine` with the adapter `name` in place of its own; `WorkloadError` without memory."""
    nic = machine.node.nic
    if name:
        nic = named_part(name, Nic, "smartnic.adapter")
    if nic is None or not nic.memory_bytes or not nic.memory_gb_per_s:
        raise WorkloadError(
            f"smartnic: the adapter {nic.name if nic else '(none)'} has no memory for rows: "
            "set adapter to one that has, such as bluefield-3 or u280"
        )
    if nic is machine.node.nic:
        return machine
    title = f"{machine.name} with {nic.name}"
    return replace(machine, name=title, node=replace(machine.node, nic=nic))
