"""SmartNICs: hot rows and their sums in the network adapters (Guo et al., ICS 2023)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np

from perfmodel.base.schema import Limits
from perfmodel.designs import settings
from perfmodel.designs.deployment import Deployment, Design
from perfmodel.embedding import POLICIES, RowCache
from perfmodel.errors import WorkloadError
from perfmodel.hardware import Cluster, Nic
from perfmodel.hardware.settings import GIVEN
from perfmodel.ops.dtypes import row_bytes
from perfmodel.workload.sharding import plan_of_placement
from perfmodel.workload.step import Run
from perfmodel.workload.tiered.adapter_rows import worth_asking


def worth_writing(deployment: Deployment, lookups: float) -> list[float]:
    """Per table, bytes of the rows that each rank's batch looks up so often or more; 0 where these
    spare fewer vectors (answers to whole bags, sums of a table in rows) than they are."""
    sizes = []
    samples = deployment.batch // deployment.ranks
    for table, where in zip(deployment.workload.tables, deployment.placement.tables, strict=True):
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
        sizes.append(rows * size if spared > rows * lookups else 0.0)
    return sizes


def first_rank(deployment: Deployment) -> Run:
    machine, ranks = deployment.machine, deployment.ranks
    linked = machine.linked_gpus
    return Run(
        workload=deployment.workload,
        batch=deployment.batch // ranks,
        ranks=ranks,
        rank=0,
        target=machine.node.device.target,
        train=deployment.train,
        plan=plan_of_placement(deployment.workload, deployment.placement, ranks, linked),
        linked=linked,
        placement=deployment.placement,
    )


MIN_GIB = 1 / 16  # of rows in an adapter, less than this is not tried in the place of more
WHOLE = ("table_wise", "column_wise")


@dataclass(frozen=True)
class SmartNic(settings.Checked, of="smartnic"):
    """Hot rows in the adapters' memory: of the own tables, and of other ranks'; sums made there.

    `adapter`: a name of the catalogue, in place of the machine's (empty: its own). Of its memory
    `cache_gib` holds rows (0: half), `remote_frac` of them other ranks'. `order`: of a batch's
    queries (`as_they_come`, or `walked` so that neighbours share rows). `hits_by`: the model of
    what caches find (`learned`, `heuristic`). Which share is whose is not published: assumed half.

    `applied`: `if_worth` holds rows of other ranks alone, of tables whose bags an adapter adds up
    sooner than their sums come over the wire where there are such (the device has its own hot rows
    in its L2), and whether that pays the schedule decides: `compare` and sweeps take the step
    without it where that is as fast; `always` holds rows all the same; `never`.
    `message_bytes`: keys and vectors travel in messages of so many bytes at most (8: one per key).
    `host_bypass`: an adapter writes to the device's memory; else by way of the host's, over the bus
    twice. A remote cache reads rows only of bags that it has whole, whose answers it spares. Tables
    in rows on all devices are served where no table is whole: a rank then sends vectors only of
    bags of which it looked up a row, and the adapter adds them up.
    In training a remote cache holds only rows that a rank's batch looks up `kept_lookups` times or
    more, of tables where that spares as many answers as it takes writes: each step writes every row
    that it changed through to every adapter. assumed: 1, where a write costs what a lookup saves.
    There is no local cache then: it would take writes over the bus.
    """

    adapter: str = ""
    cache_gib: settings.Amount = 0.0
    remote_frac: settings.Share = 0.5
    policy: str = "lru"
    order: Literal["as_they_come", "walked"] = "as_they_come"
    hits_by: Literal["learned", "heuristic"] = "learned"
    applied: Literal["if_worth", "always", "never"] = "if_worth"
    message_bytes: Annotated[float, Limits(8.0, settings.MOST, "a key and more")] = 4096.0
    host_bypass: bool = True
    kept_lookups: settings.Amount = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        settings.require_known(self.of, "policy", self.policy, POLICIES)
        if self.adapter:
            settings.named_part(self.adapter, Nic, "smartnic.adapter")

    def apply(self, deployment: Deployment) -> Deployment:
        """Caches for all whole tables (or columns) in device memory; `deployment` as it is, with a
        note that says why, where there can be none."""
        machine = with_adapter(deployment.machine, self.adapter)
        placed, nic = deployment.placement.tables, machine.node.nic
        free = [table.tier == "hbm" and not table.caches for table in placed]
        pairs = list(zip(placed, free, strict=True))
        served = [is_free and table.sharding in WHOLE for table, is_free in pairs]
        in_rows = not any(served)
        if in_rows:
            served = [
                is_free and table.sharding == "row_wise" and len(table.ranks) == deployment.ranks
                for table, is_free in pairs
            ]
        why = ""
        if deployment.ranks == deployment.machine.linked_gpus:
            why = "links join all devices, no lookup crosses an adapter"
        elif nic is None or not nic.memory_bytes or not nic.memory_gb_per_s:
            why = (
                f"the adapter {nic.name if nic else '(none)'} has no memory for rows: set "
                "smartnic.adapter to one that has, such as bluefield-3 or u280"
            )
        elif not any(served):
            why = (
                "no table in device memory is whole or in columns and without a cache, nor in rows "
                "on all devices"
            )
        elif self.applied == "never":
            why = "rows in adapters are not asked for"
        else:
            cached = self._cached(deployment.with_(machine=machine), served, in_rows)
            if cached is not None:
                return cached
            why = "rows are written as often as they are looked up"
        note = f"not applied, the step is as without it: {why}"
        return deployment.with_(f"smartnic: {note}", without_gain=(*deployment.without_gain, note))

    def _cached(
        self, deployment: Deployment, served: list[bool], in_rows: bool
    ) -> Deployment | None:
        """With rows in adapters; None where no table has one to hold."""
        total, shared, policy = self._bytes(deployment.machine), list(served), self.policy
        remote = total * self.remote_frac
        local = total - remote if self.applied == "always" and not deployment.train else 0.0
        if self.applied != "always":
            worth = worth_asking(first_rank(deployment), deployment.machine)
            pays = [each and pays for each, pays in zip(shared, worth, strict=True)]
            shared = pays if any(pays) else shared
        if deployment.train:
            hot = worth_writing(deployment, self.kept_lookups)
            shared = [each and size > 0 for each, size in zip(shared, hot, strict=True)]
            remote = min(remote, sum(np.compress(shared, hot).tolist()))
            policy = "static"
        usual: dict[str, Any] = {
            "order": self.order,
            "hits_by": self.hits_by,
            "host_bypass": self.host_bypass,
            "message_bytes": self.message_bytes,
        }
        caches = []
        if local > 0:
            caches.append(RowCache("nic_local", "nic_local", local, self.policy, **usual))
        if remote > 0 and any(shared):
            about = usual | {"whole_bags": not in_rows}
            caches.append(RowCache("nic_remote", "nic_remote", remote, policy, **about))
        if not caches:
            return None
        names = tuple(cache.name for cache in caches)
        own = tuple(name for name in names if name != "nic_remote")
        placement = deployment.placement.edited(
            lambda n, _: {"caches": names if shared[n] else own} if served[n] else {},
            caches=tuple(caches),
        )
        held = ", ".join(f"{cache.at} {cache.capacity_bytes / 2**30:.3g} GiB" for cache in caches)
        note = (
            f"smartnic: rows in each adapter: {held}; assumed: partial sums added in the adapter, "
            "rows written through"
        )
        return deployment.with_(note, placement=placement)

    def within(self, deployment: Deployment) -> Iterable[Design]:
        """Without rows in the adapters, and with fewer."""
        machine = with_adapter(deployment.machine, self.adapter)
        if self.applied != "if_worth" or not machine.node.nic or not machine.node.nic.memory_bytes:
            return []
        most = self._bytes(machine) / 2.0**30
        fewer = [replace(self, cache_gib=size) for size in settings.halved(most, MIN_GIB)]
        return [replace(self, applied="never"), *fewer]

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


_OF_WIRE = ("gb_per_s", "network", "latency_us", "exchange_frac")


def with_adapter(machine: Cluster, name: str) -> Cluster:
    """`machine` with the adapter `name` in place of its own, on the same wire, and with every
    figure of an adapter that `--set nic.…` gave."""
    if not name:
        return machine
    nic, old = settings.named_part(name, Nic, "smartnic.adapter"), machine.node.nic
    if old is not None:
        given = [key for key, source in old.sources.items() if source.startswith(GIVEN)]
        kept = {key: getattr(old, key) for key in (*_OF_WIRE, *given)}
        nic = replace(nic, **kept)
    changed = replace(machine.node, nic=nic)
    return replace(machine, node=changed, name=f"{machine.name} with {nic.name}")
