"""Whether memory holds every rank's step, what a step has there beside tables, and the largest
batch that it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

from perfmodel.designs.deployment import Deployment
from perfmodel.embedding import Pipeline, Placement
from perfmodel.hardware import Cluster, Device
from perfmodel.lowering.lower import CPU
from perfmodel.workload import Workload
from perfmodel.workload.memory_tiers import (
    CONTEXT_BYTES,
    MemoryUse,
    TierUse,
    driver_bytes,
    memory_use,
    tier_use,
    with_activations,
)
from perfmodel.workload.step import cached_op_graph, deciding_classes, rank_classes


def fits(workload: Workload, machine: Cluster, batch: int, train: bool, linked: int) -> bool:
    """Whether memory holds the step of every rank in the workload's own software, by its own
    layout; links join `linked` ranks each."""
    uses = _uses(workload, machine, batch, train, linked)
    device = machine.node.device
    return max(use.total_bytes for use in uses) + driver_bytes(device) <= device.hbm_bytes


def holds(deployment: Deployment) -> bool:
    """Whether memory holds the deployment's tables and what a step has beside them."""
    return filled_frac(deployment) <= 1.0


def filled_frac(deployment: Deployment) -> float:
    """What the deployment needs of the memory that it fills most, 1 being all; of one that tables
    alone overfill, these alone."""
    it = deployment
    uses = tier_use(it.workload, it.placement, it.machine, train=it.train)
    if (alone := _filled(uses)) > 1.0:
        return alone
    return _filled(with_activations(uses, beside_bytes(it) - CONTEXT_BYTES))


def _filled(uses: Iterable[TierUse]) -> float:
    known = ((it.total_bytes, it.capacity_bytes) for it in uses if it.capacity_bytes is not None)
    return max((size / max(room, 1.0) for size, room in known), default=0.0)


def filled_frac_of(memory: Mapping[str, Any], device: Device) -> float:
    """The same of what a prediction says of memory."""
    if tiers := memory.get("tiers"):
        known = (each for each in tiers if each["capacity_bytes"])
        return max(float(each["total_bytes"] / each["capacity_bytes"]) for each in known)
    return float(memory["total_bytes"] / device.hbm_bytes)


MOST, GROWTH = 1 << 30, 64
"""Samples of a batch that are tried, at most, and how many times as many as fit."""
PLACES, LINES = 8, 5
"""Binary places of a batch that is found, and tries along lines before the range is halved."""


def largest(filled: Callable[[int], float | None], start: int) -> int:
    """The largest batch of which `filled` says no more than 1 (None: it does not fit), tried from
    `start` on, in binary rounded down to `PLACES`; 0 where one sample does not fit. Memory grows
    nearly along a line."""
    fit, too_many, tries = 0, MOST, 0
    known, batch = list[tuple[int, float]](), start
    while True:
        frac, tries = filled(batch), tries + 1
        known += [] if frac is None else [(batch, frac)]
        if frac is not None and frac <= 1.0:
            fit = batch
        else:
            too_many = batch
        step = 1 << max(fit.bit_length() - PLACES, 0)
        if too_many - fit <= step:
            return fit
        guess = (fit + too_many) / 2 if too_many < MOST else float(GROWTH * max(fit, 1))
        if len(known) > 1 and tries <= LINES:
            (one, before), (other, after) = known[-2:]
            if (slope := (after - before) / (other - one)) > 0:
                guess = min(other + (1.0 - after) / slope, guess * GROWTH)
        size = max(int(guess), fit + step)
        batch = min(size & -(1 << max(size.bit_length() - PLACES, 0)), too_many - 1)


def beside_bytes(deployment: Deployment) -> float:
    """Of device memory, what the ranks that decide have beside tables: parameters, the batch,
    activations, and what the driver takes."""
    it = deployment
    about = (it.workload, it.machine, it.batch, it.train, it.machine.linked_gpus)
    uses = _uses(*about, it.placement, it.pipeline)
    return max(use.resident_bytes + use.temporary_bytes for use in uses) + CONTEXT_BYTES


@lru_cache(maxsize=128)
def _uses(
    workload: Workload,
    machine: Cluster,
    batch: int,
    train: bool,
    linked: int,
    placement: Placement | None = None,
    pipeline: Pipeline | None = None,
) -> tuple[MemoryUse, ...]:
    """Of the ranks that decide, and without a placement of the one with most rows."""
    ranks, target = machine.gpus, machine.node.device.target
    classes = rank_classes(workload, ranks, linked, placement, batch)
    works = ("held_rows_bytes",) * (placement is None)
    uses = []
    for rank in (each.ranks[0] for each in deciding_classes(classes, *works)):
        step: dict[str, Any] = {"ranks": ranks, "rank": rank, "target": target, "train": train}
        step |= {"linked": linked, "placement": placement, "pipeline": pipeline, "sharers": 0.0}
        use = memory_use(cached_op_graph(workload, batch, **step), in_host_memory=target == CPU)
        assert use is not None  # recorded ops know their storages
        uses.append(use)
    return tuple(uses)
