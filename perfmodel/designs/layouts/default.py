"""Which layout a deployment has unless it is told, the same for whoever asks: its workload's own
where memory holds it, else the best of a quick search; and what would do where none fits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import replace
from functools import cache, lru_cache, partial
from itertools import islice
from math import ceil
from typing import Any

from perfmodel.base.answers import OWN_MODELS
from perfmodel.designs.deployment import DESIGNS, Deployment, largest
from perfmodel.designs.layouts.problem import CACHED_FRACS
from perfmodel.designs.layouts.search import packed_best, placement_of
from perfmodel.designs.layouts.surrogate import problems
from perfmodel.embedding import Pipeline, Placement, TablePlacement
from perfmodel.errors import PerfmodelError, WorkloadError
from perfmodel.hardware import Cluster
from perfmodel.workload import Workload, sharding
from perfmodel.workload.memory_tiers import CONTEXT_BYTES, in_gb, shard_bytes, tier_use
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
    pipeline = Pipeline(input_ahead=workload.implementation.prefetch)
    placement = sharding.own_placement(workload, machine.gpus, machine.linked_gpus)
    own = Deployment(workload, machine, total, placement, pipeline, train)
    if own.fits or (laid := searched(own)) is None:
        return own
    kinds = Counter(table.sharding for table in laid.placement.tables)
    mix = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    scheme = workload.implementation.sharding
    note = f"implementation.sharding {scheme!r} does not fit: tables as a search has them"
    return replace(laid, own_layout=placement, notes=(f"{note}, {mix}",))


def searched(
    deployment: Deployment, beside: bool = False, cached_fracs: Sequence[float] = CACHED_FRACS
) -> Deployment | None:
    """The deployment with its tables as the planner's linear programme has them, packed; None where
    memory does not hold that.

    Tables that fill device memory may lie in the host's `beside` it, behind caches of
    `cached_fracs` of a shard.
    """
    plain = replace(deployment, notes=())
    placement = _searched(plain, beside, tuple(cached_fracs), OWN_MODELS.get())
    return None if placement is None else replace(deployment, placement=placement)


@lru_cache(maxsize=64)  # designs start from the same, and try less of themselves
def _searched(
    deployment: Deployment, beside: bool, cached_fracs: tuple[float, ...], _models: str
) -> Placement | None:
    """By the models in use, which `_models` names."""
    for problem in problems(deployment, beside, cached_fracs):
        if (found := packed_best(problem)) is None:
            return None
        placement = placement_of(deployment, found)
        with suppress(WorkloadError):  # beside resident tables a cache may lack room for a batch
            if replace(deployment, placement=placement).fits:
                return placement
    return None


CACHED, NARROW = "software_cache", "fp16"
"""The design that puts tables into host memory, hot rows of them into device memory; rows of half
the bytes that can be trained."""
TRIES = 6
"""Numbers of nodes that are tried."""


def shortage(own: Deployment) -> str:
    """Of a deployment whose tables fit into device memory in no layout, in a line: by how much, and
    what would do."""
    each, beside = own.machine.node.device.hbm_bytes, own.beside_bytes
    optimizer = own.workload.training.table_optimizer if own.train else None
    whole = TablePlacement("table_wise", (0,), dtype=own.workload.implementation.table_precision)
    needed = sum(shard_bytes(table, whole, optimizer) for table in own.workload.tables)
    room = own.ranks * max(each - beside, 0.0)
    over = f"{in_gb(needed - room)} more than" if needed > room else "which no layout spreads over"
    remedies = "; ".join(_remedies(own, needed, room))
    has = f"{own.machine.gpus} x {own.machine.node.device.name} have beside layers and activations"
    needs = f"{own.workload.name}: tables need {in_gb(needed)} of device memory, {over} the"
    has = f"{in_gb(room)} that {has} ({in_gb(beside)} of each {in_gb(each)})"
    return f"{needs} {has}; what would do: {remedies or 'nothing that was tried'}"


class Shortage:
    """The same, found where it is read: to try what would do takes seconds."""

    def __init__(self, own: Deployment) -> None:
        self._found = cache(partial(copy_context().run, shortage, own))

    def __str__(self) -> str:
        return self._found()

    __repr__ = __str__

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)


def _remedies(own: Deployment, needed: float, room: float) -> Iterator[str]:
    each = own.machine.node.device.hbm_bytes - CONTEXT_BYTES
    of_batch = own.beside_bytes - CONTEXT_BYTES
    most = own.batch * (each - needed / own.ranks) / of_batch
    if most >= 1 and (batch := largest(lambda n: _filled(own, batch=n), min(int(most), own.batch))):
        yield f"a batch of {batch:,}"
    if needed > room > 0:
        yield f"{100 * room / needed:.1f} % of the rows"
    narrow = own.workload.with_(implementation__table_precision=NARROW)
    if narrow != own.workload and _filled(own, workload=narrow) <= 1.0:
        yield f"{NARROW} rows (implementation.table_precision)"
    with suppress(PerfmodelError):
        cached = DESIGNS[CACHED]().apply(own)
        uses = tier_use(own.workload, cached.placement, own.machine, train=own.train)
        if all(use.fits for use in uses):
            yield f"host memory behind a cache (`perfmodel compare --designs {CACHED}`)"
    with suppress(PerfmodelError):  # without a network they do not meet
        # What activations take is shared by all nodes, so that fewer than these never do.
        fewest = ceil((needed + own.ranks * of_batch) / (own.machine.node.gpus * each))
        fewest = max(fewest, own.machine.nodes + 1)
        machines = (replace(own.machine, nodes=fewest + more) for more in range(TRIES))
        enough = (it for it in machines if _filled(own, machine=it) <= 1.0)
        yield from (f"{it.nodes} nodes" for it in islice(enough, 1))


def _filled(own: Deployment, **changes: Any) -> float:
    """What the default layout of the deployment with these changes needs of memory."""
    it = replace(own, **changes)
    return deployment_of(it.workload, it.machine, it.batch, train=it.train).filled_frac
