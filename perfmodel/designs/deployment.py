"""What a design edits: a workload, its placement and its pipeline on a machine."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from perfmodel.hardware import Cluster
from perfmodel.placement import Pipeline, Placement
from perfmodel.registry import Registry
from perfmodel.workload import Workload


@dataclass(frozen=True)
class Deployment:
    """A workload with a global `batch` on `machine`: where its tables lie, how its step runs.

    `notes`: what a user should know of how it came about, assumptions first.
    """

    workload: Workload
    machine: Cluster
    batch: int
    placement: Placement
    pipeline: Pipeline = field(default_factory=Pipeline)
    train: bool = True
    notes: tuple[str, ...] = ()

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
