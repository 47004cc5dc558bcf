"""What a design edits: a workload, its placement and its pipeline on a machine."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from perfmodel.errors import WorkloadError
from perfmodel.hardware import Cluster
from perfmodel.placement import Pipeline, Placement
from perfmodel.registry import Registry
from perfmodel.workload import Workload


@dataclass(frozen=True)
class Phase:
    """Steps of one kind, the share `steps_frac` of all, in runs that are long against a step.

    Before a run `to_device_bytes` come to every device, after it `to_host_bytes` go back from one.
    A run has `run_steps` steps.
    """

    name: str
    steps_frac: float
    placement: Placement
    pipeline: Pipeline
    to_device_bytes: float = 0.0
    to_host_bytes: float = 0.0
    run_steps: float = float("inf")

    def __post_init__(self) -> None:
        if not 0.0 < self.steps_frac <= 1.0:
            raise WorkloadError(f"phase {self.name!r}: {self.steps_frac:g} of the steps")
        if not self.run_steps > 0:
            raise WorkloadError(f"phase {self.name!r}: runs of {self.run_steps:g} steps")


@dataclass(frozen=True)
class Deployment:
    """A workload with a global `batch` on `machine`: where its tables lie, how its step runs.

    `phases`: where steps are of several kinds, one for each; else all have `placement` and
    `pipeline`. `notes`: what a user should know of how it came about, assumptions first.
    """

    workload: Workload
    machine: Cluster
    batch: int
    placement: Placement
    pipeline: Pipeline = field(default_factory=Pipeline)
    train: bool = True
    notes: tuple[str, ...] = ()
    phases: tuple[Phase, ...] = ()

    @property
    def ranks(self) -> int:
        """One per device."""
        return self.machine.gpus

    def with_(self, *notes: str, **changes: Any) -> Deployment:
        """A copy with fields changed, and `notes` more."""
        return replace(self, notes=self.notes + notes, **changes)


class Design(Protocol):
    """A frozen dataclass whose fields are the design's settings, each with a default."""

    def apply(self, deployment: Deployment) -> Deployment:
        """`deployment` under this design; `WorkloadError` where that makes no sense, and why."""


DESIGNS: Registry[type[Design]] = Registry("design", "perfmodel.designs", "perfmodel.designs")
"""By name; a docstring's first line is what a user reads of it."""
