"""One rank's step: what is asked of an implementation, and the registry of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, TypeAlias

from perfmodel.placement import MicroBatch, Pipeline, Placement
from perfmodel.registry import Registry
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.model import Workload
from perfmodel.workload.shards import Plan
from perfmodel.workload.tables import Table, lookups

Target = Literal["cuda", "rocm", "cpu"]


@dataclass(frozen=True)
class Run:
    """A step of `workload` on one of `ranks`: `batch` samples of each rank, trained or not.

    `plan` says which tables each rank holds; links join `linked` ranks each. `placement` and
    `pipeline` are what the implementation `tiered` runs, and no other.
    """

    workload: Workload
    batch: int
    ranks: int
    rank: int
    target: Target
    train: bool
    plan: Plan
    linked: int
    placement: Placement | None = None
    pipeline: Pipeline | None = None
    micro_batch: MicroBatch = field(default_factory=MicroBatch)
    """Which part of the step's samples `batch` is, where a pipeline parts them."""

    @property
    def global_batch(self) -> int:
        return self.batch * self.ranks

    @property
    def groups(self) -> int:
        """How many groups of linked ranks there are."""
        return self.ranks // self.linked

    @cached_property
    def tables(self) -> tuple[Table, ...]:
        """The tables that this rank holds, and parts of tables."""
        return tuple(shard.of(self.workload.tables) for shard in self.plan.shards[self.rank])

    @cached_property
    def replicas(self) -> tuple[Table, ...]:
        """The tables that every rank holds."""
        return tuple(self.workload.tables[number] for number in self.plan.replicated)

    @cached_property
    def attributes(self) -> tuple[dict[str, str], ...]:
        """Per table of this rank: what the global batch looks up, as attributes of an op."""
        seen: dict[Table, dict[str, str]] = {}
        for table in self.tables:
            if table not in seen:
                seen[table] = lookups((table,), self.global_batch).to_attributes()
        return tuple(seen[table] for table in self.tables)

    @property
    def style(self) -> str:
        """How the dense optimizer runs: what PyTorch picks unless the workload says."""
        asked = self.workload.implementation.optimizer_style
        if asked != "default":
            return asked
        return "loop" if self.target == "cpu" else "foreach"


Strategy: TypeAlias = Callable[[Recorder, Run], None]
"""Records the ops of one step."""

IMPLEMENTATIONS: Registry[Strategy] = Registry(
    "implementation", "perfmodel.implementations", "perfmodel.workload.implementations"
)
"""By `implementation.name` of a workload."""
