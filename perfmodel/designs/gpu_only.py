"""All tables in device memory, shared out over the GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from perfmodel.designs.default import deployment_of
from perfmodel.designs.deployment import DESIGNS, Deployment
from perfmodel.placement import TablePlacement


@DESIGNS.register("gpu_only")
@dataclass(frozen=True)
class GpuOnly:
    """All tables in device memory; infeasible where they do not fit.

    Those that ranks share in a host's memory lie as the workload's own settings lay them out.
    """

    def apply(self, deployment: Deployment) -> Deployment:
        def edit(number: int, placed: TablePlacement) -> dict[str, Any]:
            found = {"tier": "hbm", "pooled_on": "device", "caches": (), "hot_rows": 0}
            if placed.tier == "hbm" or placed.sharding != "data_parallel":
                return found
            own = usual.placement.tables[number]
            return found | {"sharding": own.sharding, "ranks": own.ranks}

        usual = deployment_of(
            deployment.workload, deployment.machine, deployment.batch, train=deployment.train
        )
        return deployment.with_(placement=deployment.placement.edited(edit))
