"""All tables in device memory, shared out over the GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.designs.deployment import DESIGNS, Deployment


@DESIGNS.register("gpu_only")
@dataclass(frozen=True)
class GpuOnly:
    """All tables in device memory; infeasible where they do not fit."""

    def apply(self, deployment: Deployment) -> Deployment:
        placement = deployment.placement.edited(
            lambda _number, _placed: {
                "tier": "hbm",
                "pooled_on": "device",
                "caches": (),
                "hot_rows": 0,
            }
        )
        return deployment.with_(placement=placement)
