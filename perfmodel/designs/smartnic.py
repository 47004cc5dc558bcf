"""SmartNICs: hot rows and their sums in the network adapters (Guo et al., ICS 2023)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from perfmodel.designs import settings
from perfmodel.designs.deployment import Deployment
from perfmodel.embedding import RowCache
from perfmodel.embedding.placement import NIC
from perfmodel.errors import WorkloadError
from perfmodel.hardware import Cluster, Nic
from perfmodel.hardware.settings import GIVEN

MIN_GIB = 1 / 32  # of rows in an adapter, less than this is not tried in the place of more
WHOLE = ("table_wise", "column_wise")
_OF_WIRE = ("gb_per_s", "network", "latency_us", "exchange_frac")


@dataclass(frozen=True)
class SmartNic(settings.Checked, of="smartnic"):
    """Hot rows of other ranks in the adapters' memory, their sums made there.

    `adapter`: a name of the catalogue, in place of the machine's (empty: its own). `cache_gib` of
    its memory hold rows (`auto`: a quarter, assumed; 0: none). Rows are read only of bags that it
    has whole, whose answers it spares; so tables are served that lie whole, or in columns. A rank's
    own hot rows are in its device's L2. Whether it pays the schedule decides: `compare` and sweeps
    take less, or the step without it, where that is as fast.
    For inference: each step of a training would write every row that it changed through to every
    adapter, which was slower wherever it was tried.
    """

    adapter: str = ""
    cache_gib: settings.Amount | settings.Auto = settings.AUTO
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
        elif deployment.train:
            why = "training would write the rows that it changes to every adapter"
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
            size = self._bytes(machine)
            placement = deployment.placement.edited(
                lambda number, _: {"caches": (NIC,)} if served[number] else {},
                caches=(RowCache(NIC, NIC, size),),
            )
            note = (
                f"smartnic: {size / 2**30:.3g} GiB of other ranks' rows in each adapter; assumed: "
                "partial sums added in the adapter"
            )
            return deployment.with_(note, machine=machine, placement=placement)
        return deployment.unchanged("smartnic", f"the step is as without it: {why}")

    def within(self, deployment: Deployment) -> Iterator[Self]:
        machine = self._machine(deployment.machine)
        if machine.node.nic and machine.node.nic.memory_bytes:
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
        asked = memory / 4 if isinstance(self.cache_gib, str) else self.cache_gib * 2.0**30
        if asked > memory:
            raise WorkloadError(
                f"smartnic: {asked / 2**30:.3g} GiB of rows: {node.nic.name} has "
                f"{memory / 2**30:.3g} GiB per rank"
            )
        return asked
