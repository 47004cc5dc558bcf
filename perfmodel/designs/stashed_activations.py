"""Activations in host memory between the forward and the backward pass."""

from __future__ import annotations

from dataclasses import dataclass, replace

from perfmodel.designs import settings
from perfmodel.designs.deployment import Deployment
from perfmodel.errors import WorkloadError


@dataclass(frozen=True)
class StashedActivations(settings.Checked, of="stashed_activations"):
    """Activations wait in host memory for the backward pass: less device memory, more copies.

    Of each rank `most_gib`, those made first, are copied out behind their last use, by one copy
    engine, and back by the other, in turn with the input, from `nodes_ahead` nodes of autograd
    before they are needed. Memory is that of copies that keep up with the step, on the device.
    Source: TorchRec's activation stashing (pull request 3819); no peer answers it for tables.
    """

    most_gib: settings.Amount = settings.budget(1.0, settings.halves(1 / 16))
    nodes_ahead: settings.Count = 2

    def apply(self, deployment: Deployment) -> Deployment:
        """A pipeline that stashes."""
        if not deployment.train or deployment.machine.node.device.target == "cpu":
            raise WorkloadError(f"{self.of}: inference and CPUs keep no activations on a device")
        stash = (self.most_gib * 2.0**30, self.nodes_ahead) if self.most_gib else None
        return deployment.with_(pipeline=replace(deployment.pipeline, stash=stash))
