"""What is left of designs that others were put on top of: only what a step still uses."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.designs.deployment import Deployment
from perfmodel.errors import WorkloadError
from perfmodel.hardware import Cluster
from perfmodel.placement import Pipeline, Placement


def settled(deployment: Deployment) -> Deployment:
    """`deployment` without caches that no table has, and without work beside a step that no table
    needs; of steps of several kinds that have become alike, one kind.

    Raises `WorkloadError` where samples are parted by hot rows that there are no longer.
    """
    found = _settled_step(deployment)
    if not deployment.phases:
        return found
    parts = [
        _settled_step(replace(deployment, placement=phase.placement, pipeline=phase.pipeline))
        for phase in deployment.phases
    ]
    first = parts[0]
    if all(part == first for part in parts):
        return replace(first, phases=())
    phases = tuple(
        replace(phase, placement=part.placement, pipeline=part.pipeline)
        for phase, part in zip(deployment.phases, parts, strict=True)
    )
    return replace(found, phases=phases)


def without_drives(machine: Cluster, placement: Placement) -> Cluster:
    """`machine` as `placement` sees it: drives are nothing to it where no table lies there."""
    if any(table.tier == "storage" for table in placement.tables):
        return machine
    return replace(machine, node=replace(machine.node, storage=None, drives=None))


def _settled_step(deployment: Deployment) -> Deployment:
    placement, pipeline = deployment.placement, deployment.pipeline
    if any(part.popular for part in pipeline.micro_batches) and not _has_hot_rows(placement):
        raise WorkloadError("designs: samples stay parted by hot rows of which none are left")
    return replace(deployment, placement=_used(placement), pipeline=_needed(pipeline, placement))


def _used(placement: Placement) -> Placement:
    named = {name for table in placement.tables for name in table.caches}
    caches = tuple(cache for cache in placement.caches if cache.name in named)
    return replace(placement, caches=caches)


def _needed(pipeline: Pipeline, placement: Placement) -> Pipeline:
    hot = _has_hot_rows(placement)
    on_drives = any(table.tier == "storage" for table in placement.tables)
    cached = any(table.tier != "hbm" and table.caches for table in placement.tables)
    by_host = any(table.pooled_on == "host" for table in placement.tables)
    return replace(
        pipeline,
        rows_ahead=pipeline.rows_ahead and (cached or on_drives),
        rows_beside=pipeline.rows_beside and hot,
        writes_behind=pipeline.writes_behind and (hot or on_drives or by_host),
    )


def _has_hot_rows(placement: Placement) -> bool:
    return any(table.hot_rows for table in placement.tables)
