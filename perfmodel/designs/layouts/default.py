"""Which layout a deployment has unless it is told, the same for whoever asks: its workload's own
where memory holds it, else the best that a search of a second finds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from perfmodel.designs.deployment import Deployment
from perfmodel.designs.layouts.memory import holds
from perfmodel.designs.layouts.problem import CACHED_FRACS
from perfmodel.designs.layouts.search import packed_best, placement_of
from perfmodel.designs.layouts.surrogate import RESERVED_FRACS, surrogate
from perfmodel.embedding import Pipeline
from perfmodel.errors import WorkloadError
from perfmodel.hardware import Cluster
from perfmodel.workload import Workload, sharding
from perfmodel.workload.step import check_ranks


def deployment_of(
    workload: Workload, machine: Cluster, batch: int | None = None, *, train: bool = True
) -> Deployment:
    """`workload` on `machine`, its tables in device memory as `implementation.sharding` lays them
    out, its input ahead where `implementation.prefetch` says so; `batch` is global.

    Where that does not fit, they lie as the planner's linear programme has them, packed, if that
    does; `notes` say so. Raises `WorkloadError` for a batch below 1, and for software that is asked
    for parts it has not.
    """
    total = workload.batch if batch is None else batch
    check_ranks(workload, total, machine.gpus, 0)
    plan = sharding.plan(workload, machine.gpus, machine.linked_gpus)
    pipeline = Pipeline(input_ahead=workload.implementation.prefetch)
    placement = sharding.placement_of(plan, workload)
    own = Deployment(workload, machine, total, placement, pipeline, train)
    if holds(own):
        return own
    laid = searched(own)
    if laid is None:
        return own
    kinds = Counter(table.sharding for table in laid.placement.tables)
    mix = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    scheme = workload.implementation.sharding
    note = f"implementation.sharding {scheme!r} does not fit: tables as a search has them"
    return replace(laid, own_layout=placement, notes=(f"{note}, {mix}",))


def searched(
    deployment: Deployment,
    beside: Sequence[str] = (),
    cached_fracs: Sequence[float] = CACHED_FRACS,
) -> Deployment | None:
    """The deployment with its tables as the planner's linear programme has them, packed; None where
    memory does not hold that.

    Tables that fill device memory may lie in the memories `beside` it, behind caches of
    `cached_fracs` of a shard.
    """
    for reserved in RESERVED_FRACS:
        reserved_bytes = reserved * deployment.machine.node.device.hbm_bytes
        problem = surrogate(
            deployment, reserved_bytes=reserved_bytes, beside=beside, cached_fracs=cached_fracs
        )
        if (found := packed_best(problem)) is None:
            return None
        laid = replace(deployment, placement=placement_of(deployment, found))
        with suppress(WorkloadError):  # beside resident tables a cache may lack room for a batch
            if holds(laid):
                return laid
    return None
