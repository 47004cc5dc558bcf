"""A cache of rows in what a KV cache leaves of device memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from perfmodel.base.units import BYTES_PER_GB
from perfmodel.designs import settings
from perfmodel.designs.deployment import Deployment
from perfmodel.designs.device_caches import SoftwareCache
from perfmodel.errors import WorkloadError
from perfmodel.workload.memory_tiers import CONTEXT_BYTES

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
        """All tables behind a cache on devices with less memory."""
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
