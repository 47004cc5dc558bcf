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
    TierUse,
    memory_use,
    tier_use,
    with_activations,
)
from perfmodel.workload.step import cached_op_graph, deciding_classes, rank_classes


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
    return _beside_bytes(it.workload, it.machine, it.batch, it.train, it.placement, it.pipeline)


@lru_cache(maxsize=128)
def _beside_bytes(
    workload: Workload,
    machine: Cluster,
    batch: int,
    train: bool,
    placement: Placement,
    pipeline: Pipeline,
) -> float:
    ranks, target, linked = machine.gpus, machine.node.device.target, machine.linked_gpus
    beside = 0.0
    for each in deciding_classes(rank_classes(workload, ranks, linked, placement, batch)):
        step: dict[str, Any] = {"ranks": ranks, "rank": each.ranks[0], "target": target}
        step |= {"train": train, "linked": linked, "placement": placement, "pipeline": pipeline}
        graph = cached_op_graph(workload, batch, **step, sharers=0.0)
        use = memory_use(graph, in_host_memory=target == CPU)
        assert use is not None  # recorded ops know their storages
        beside = max(beside, use.resident_bytes + use.temporary_bytes)
    return beside + CONTEXT_BYTES
