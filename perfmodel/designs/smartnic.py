"""SmartNICs: hot rows and their sums in the network adapters (Guo et al., ICS 2023)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

from perfmodel.designs import settings
from perfmodel.designs.deployment import Deployment
from perfmodel.embedding import RowCache
from perfmodel.errors import WorkloadError
from perfmodel.hardware import Cluster, Nic
from perfmodel.hardware.settings import GIVEN

MIN_GIB = 1 / 16  # of rows in an adapter, less than this is not tried in the place of more
WHOLE = ("table_wise", "column_wise")
_OF_WIRE = ("gb_per_s", "network", "latency_us", "exchange_frac")


@dataclass(frozen=True)
class SmartNic(settings.Checked, of="smartnic"):
    """Hot rows in the adapters' memory: of the own tables, and of other ranks'; sums made there.

    `adapter`: a name of the catalogue, in place of the machine's (empty: its own). Of its memory
    `cache_gib` holds rows (`auto`: half; 0: none), `remote_frac` of them other ranks'. Which share
    is whose is not published: assumed half. A remote cache reads rows only of bags that it has
    whole, whose answers it spares; so tables are served that lie whole, or in columns.

    `applied`: `if_worth` holds rows of other ranks alone (the device has its own hot rows in its
    L2), and whether that pays the schedule decides: `compare` and sweeps take the step without it
    where that is as fast; `always` holds own rows as well.
    In training a remote cache holds only rows that a rank's batch looks up once or more, of tables
    where that spares as many answers as it takes writes: each step writes every row that it changed
    through to every adapter. There is no local cache then: it would take writes over the bus.
    """

    adapter: str = ""
    cache_gib: settings.Amount | settings.Auto = settings.AUTO
    remote_frac: settings.Share = 0.5
    applied: Literal["if_worth", "always"] = "if_worth"

    parts: ClassVar = {"adapter": Nic}

    def apply(self, deployment: Deployment) -> Deployment:
        """Caches for all whole tables (or columns) in device memory; `deployment` as it is, with a
        note that says why, where there can be none."""
        machine = self._machine(deployment.machine)
        nic = machine.node.nic
        served = [
            table.tier == "hbm" and not table.caches and table.sharding in WHOLE
            for table in deployment.placement.tables
        ]
        if deployment.ranks == deployment.machine.linked_gpus:
            why = "links join all devices, no lookup crosses an adapter"
        elif nic is None or not nic.memory_bytes or not nic.memory_gb_per_s:
            why = (
                f"the adapter {nic.name if nic else '(none)'} has no memory for rows: set "
                "smartnic.adapter to one that has, such as bluefield-3 or u280"
            )
        elif not any(served):
            why = "no table in device memory is whole or in columns and without a cache"
        elif self.cache_gib == 0:
            why = "no rows in adapters are asked for (smartnic.cache_gib 0)"
        else:
            cached = self._cached(deployment.with_(machine=machine), served)
            if cached is not None:
                return cached
            why = "no rows of other ranks are asked for (smartnic.remote_frac 0)"
            if self.remote_frac:
                why = "rows are written as often as they are looked up"
        return deployment.unchanged("smartnic", f"the step is as without it: {why}")

    def _cached(self, deployment: Deployment, served: list[bool]) -> Deployment | None:
        """With rows in adapters; None where no table has one to hold."""
        total, shared, policy = self._bytes(deployment.machine), served, "lru"
        remote = total * self.remote_frac
        local = total - remote if self.applied == "always" and not deployment.train else 0.0
        if deployment.train:
            hot = worth_writing(deployment)
            hot = [size * each for each, size in zip(served, hot, strict=True)]
            shared, remote = [size > 0 for size in hot], min(remote, sum(hot))
            policy = "static"
        caches = []
        if local > 0:
            caches.append(RowCache("nic_local", "nic_local", local))
        if remote > 0:
            caches.append(RowCache("nic_remote", "nic_remote", remote, policy))
        if not caches:
            return None
        names = tuple(cache.name for cache in caches)
        placement = deployment.placement.edited(
            lambda number, _: {"caches": names} if shared[number] else {}, caches=tuple(caches)
        )
        held = ", ".join(f"{cache.at} {cache.capacity_bytes / 2**30:.3g} GiB" for cache in caches)
        note = (
            f"smartnic: rows in each adapter: {held}; assumed: partial sums added in the adapter, "
            "rows written through"
        )
        return deployment.with_(note, placement=placement)

    def within(self, deployment: Deployment) -> Iterator[Self]:
        machine = self._machine(deployment.machine)
        if self.applied == "if_worth" and machine.node.nic and machine.node.nic.memory_bytes:
            most = self._bytes(machine) / 2.0**30
            for size in settings.halves(MIN_GIB)(most):
                yield replace(self, cache_gib=size)

    def _machine(self, machine: Cluster) -> Cluster:
        """`machine` with `adapter` in place of its own, on the same wire, and with every figure of
        an adapter that `--set nic.…` gave."""
        if not self.adapter:
            return machine
        nic, old = self.part(Nic, "adapter", self.adapter), machine.node.nic
        if old is not None:
            given = [key for key, source in old.sources.items() if source.startswith(GIVEN)]
            nic = replace(nic, **{key: getattr(old, key) for key in (*_OF_WIRE, *given)})
        node = replace(machine.node, nic=nic)
        return replace(machine, node=node, name=f"{machine.name} with {nic.name}")

    def _bytes(self, machine: Cluster) -> float:
        """Of rows on each rank's share of the adapters."""
        node = machine.node
        assert node.nic is not None
        memory = (node.nic.memory_bytes or 0) * (node.nics or 1) / node.gpus
        asked = memory / 2 if isinstance(self.cache_gib, str) else self.cache_gib * 2.0**30
        if asked > memory:
            raise WorkloadError(
                f"smartnic: {asked / 2**30:.3g} GiB of rows: {node.nic.name} has "
                f"{memory / 2**30:.3g} GiB per rank"
            )
        return asked


def worth_writing(deployment: Deployment) -> list[float]:
    """Per table, bytes of the rows that each rank's batch looks up once or more; 0 where these
    spare fewer answers to whole bags than they are."""
    sizes, samples = [], deployment.samples
    pairs = zip(deployment.workload.tables, deployment.table_bytes, strict=True)
    for table, held_bytes in pairs:
        popularity = table.popularity()
        is_hot = popularity.chance * table.lookups(samples) >= 1.0
        rows, share = float(popularity.rows[is_hot].sum()), float(popularity.share[is_hot].sum())
        spared = samples * (share if table.key_rows else share ** max(table.pooling, 1.0))
        sizes.append(rows * held_bytes / table.rows if spared > rows else 0.0)
    return sizes
