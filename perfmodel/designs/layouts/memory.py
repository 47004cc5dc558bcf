"""Whether memory holds every rank's step, and what a step has there beside tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from perfmodel.designs.deployment import Deployment
from perfmodel.embedding import Pipeline, Placement
from perfmodel.hardware import Cluster
from perfmodel.lowering.walk import CPU
from perfmodel.workload import Workload
from perfmodel.workload.memory_tiers import (
    CONTEXT_BYTES,
    MemoryUse,
    memory_use,
    tier_use,
    with_activations,
)
from perfmodel.workload.step import cached_op_graph, deciding_classes, rank_classes


def fits(workload: Workload, machine: Cluster, batch: int, train: bool, linked: int) -> bool:
    """Whether memory holds the step of every rank in the workload's own software, by its own
    layout; links join `linked` ranks each."""
    uses = _uses(workload, machine, batch, train, linked)
    return max(use.total_bytes for use in uses) + CONTEXT_BYTES <= machine.node.device.hbm_bytes


def holds(deployment: Deployment) -> bool:
    """Whether memory holds the deployment's tables and what a step has beside them."""
    it = deployment
    uses = tier_use(it.workload, it.placement, it.machine, train=it.train)
    if any(use.fits is False for use in uses):
        return False
    known = with_activations(uses, beside_bytes(it) - CONTEXT_BYTES)
    return all(use.fits is not False for use in known)


def beside_bytes(deployment: Deployment) -> float:
    """Of device memory, what the ranks that decide have beside tables: parameters, the batch,
    activations, and what the driver takes."""
    it = deployment
    about = (it.workload, it.machine, it.batch, it.train, it.machine.linked_gpus)
    uses = _uses(*about, it.placement, it.pipeline)
    return max(use.resident_bytes + use.temporary_bytes for use in uses) + CONTEXT_BYTES


def _uses(
    workload: Workload,
    machine: Cluster,
    batch: int,
    train: bool,
    linked: int,
    placement: Placement | None = None,
    pipeline: Pipeline | None = None,
) -> Iterator[MemoryUse]:
    """Of the ranks that decide, and without a placement of the one with most rows."""
    ranks, target = machine.gpus, machine.node.device.target
    classes = rank_classes(workload, ranks, linked, placement, batch)
    works = ("held_rows_bytes",) * (placement is None)
    for rank in (each.ranks[0] for each in deciding_classes(classes, *works)):
        step: dict[str, Any] = {"ranks": ranks, "rank": rank, "target": target, "train": train}
        step |= {"linked": linked, "placement": placement, "pipeline": pipeline, "sharers": 0.0}
        use = memory_use(cached_op_graph(workload, batch, **step), in_host_memory=target == CPU)
        assert use is not None  # recorded ops know their storages
        yield use
