"""The machines that published figures are predicted on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from perfmodel.errors import HardwareError
from perfmodel.hardware import Cluster, Device, Node, cluster, load, node_of
from perfmodel.prediction import predict_workload
from perfmodel.prediction.types import Result
from perfmodel.workload import Workload


def unchanged(machine: Cluster) -> Cluster:
    """The machine itself."""
    return machine


@dataclass(frozen=True)
class Lab:
    """Machines of the catalogue, each as `change` makes it."""

    change: Callable[[Cluster], Cluster] = unchanged

    def machine(self, name: str, *, nodes: int | None = None, gpus: int | None = None) -> Cluster:
        """`nodes` of the catalogue's `name` with `gpus` in each; of a device, one in its node."""
        part = load(name)
        if isinstance(part, Device):
            part = replace(node_of(part), gpus=gpus or 1)
        if not isinstance(part, (Node, Cluster)):
            raise HardwareError(f"{name}: not a machine")
        found = cluster(part, nodes)
        if gpus:
            found = replace(found, node=replace(found.node, gpus=gpus))
        return self.change(found)

    def step(
        self,
        workload: Workload | str,
        machine: Cluster,
        *,
        batch: int | None = None,
        train: bool = True,
    ) -> Result:
        """A workload predicted from its configuration."""
        found = predict_workload(workload, hardware=[machine], batch=batch, train=train)
        return found.results[0]
