"""Which figures of the hardware a prediction follows from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from perfmodel.hardware import Cluster
from perfmodel.hardware.reads import Read, reads_of
from perfmodel.prediction.explain.host import host_figures
from perfmodel.prediction.explain.modelled import Modelled
from perfmodel.prediction.host_costs import HostCosts
from perfmodel.prediction.types import Result


def figures_read(machine: Cluster, log: Iterable[str], costs: HostCosts | None) -> tuple[Read, ...]:
    """What was read of `machine`, and of the hosts whose `costs` were."""
    of_hosts = () if costs is None else host_figures(costs)
    return tuple(dict.fromkeys((*reads_of(machine, log), *of_hosts)))


def with_reads(
    result: Result, machine: Cluster, log: Iterable[str], costs: HostCosts | None
) -> Result:
    """`result`, predicted on a recorded `machine`, with what was read, and on `machine` itself."""
    kernels, grounds = result.kernels, result.grounds
    if kernels is not None:
        kernels = replace(kernels, device=machine.node.device)
    if isinstance(grounds, Modelled):
        grounds = replace(grounds, machine=machine)
    return replace(
        result, reads=figures_read(machine, log, costs), kernels=kernels, grounds=grounds
    )
