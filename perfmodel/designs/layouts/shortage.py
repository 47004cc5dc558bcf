"""What to do where tables fit into device memory in no layout."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from math import ceil
from typing import Any

from perfmodel.designs.deployment import DESIGNS, Deployment
from perfmodel.designs.layouts.default import deployment_of
from perfmodel.designs.layouts.memory import beside_bytes, holds
from perfmodel.embedding import TablePlacement
from perfmodel.errors import PerfmodelError
from perfmodel.workload.memory_tiers import CONTEXT_BYTES, in_gb, shard_bytes, tier_use

CACHED, NARROW = "software_cache", "fp16"
"""The design that puts tables into host memory, hot rows of them into device memory; rows of half
the bytes that can be trained."""
BATCH_FRACS, TRIES = (1.0, 0.95, 0.85), 6
"""Of a batch, and numbers of nodes, that may do: what is tried."""


def shortage(own: Deployment) -> str:
    """Of a deployment whose tables fit into device memory in no layout, in a line: by how much, and
    what would do."""
    each, beside = own.machine.node.device.hbm_bytes, beside_bytes(own)
    needed, room = _table_bytes(own), own.ranks * max(each - beside, 0.0)
    over = f"{in_gb(needed - room)} more than" if needed > room else "which no layout spreads over"
    remedies = "; ".join(_remedies(own, needed, room))
    has = f"{own.machine.gpus} x {own.machine.node.device.name} have beside layers and activations"
    needs = f"{own.workload.name}: tables need {in_gb(needed)} of device memory, {over} the"
    has = f"{in_gb(room)} that {has} ({in_gb(beside)} of each {in_gb(each)})"
    return f"{needs} {has}; what would do: {remedies or 'nothing that was tried'}"


def _remedies(own: Deployment, needed: float, room: float) -> Iterator[str]:
    each = own.machine.node.device.hbm_bytes - CONTEXT_BYTES
    of_batch = beside_bytes(own) - CONTEXT_BYTES
    most = own.batch * (each - needed / own.ranks) / of_batch
    smaller = (int(most * frac) for frac in BATCH_FRACS)
    batches = (it for it in smaller if 0 < it < own.batch and _fits(own, batch=it))
    yield from islice((f"a batch of {it:,}" for it in batches), 1)
    if needed > room > 0:
        yield f"{room / needed:.1%} of the rows"
    narrow = own.workload.with_(implementation__table_precision=NARROW)
    if narrow != own.workload and _fits(own, workload=narrow):
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
        yield from islice((f"{it.nodes} nodes" for it in machines if _fits(own, machine=it)), 1)


def _fits(own: Deployment, **changes: Any) -> bool:
    """Whether the default layout of the deployment with these changes does."""
    it = replace(own, **changes)
    return holds(deployment_of(it.workload, it.machine, it.batch, train=it.train))


def _table_bytes(own: Deployment) -> float:
    optimizer = own.workload.training.table_optimizer if own.train else None
    whole = TablePlacement("table_wise", (0,), dtype=own.workload.implementation.table_precision)
    return sum(shard_bytes(table, whole, optimizer) for table in own.workload.tables)
