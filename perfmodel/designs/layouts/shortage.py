"""What to do where tables fit into device memory in no layout."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from math import ceil
from typing import Any

from perfmodel.base.units import BYTES_PER_GB
from perfmodel.designs.deployment import DESIGNS, Deployment
from perfmodel.designs.layouts.default import deployment_of
from perfmodel.designs.layouts.memory import beside_bytes, holds
from perfmodel.embedding import TablePlacement
from perfmodel.errors import WorkloadError
from perfmodel.workload.memory_tiers import CONTEXT_BYTES, shard_bytes, tier_use

CACHED, NARROW = "software_cache", "fp16"
"""The design that puts tables into host memory, hot rows of them into device memory; rows of half
the bytes that can be trained."""
BATCH_FRACS, TRIES = (1.0, 0.95, 0.85), 6
"""Of a batch, and numbers of nodes, that may do: what is tried."""


def shortage(own: Deployment) -> str:
    """Of a deployment whose tables fit into device memory in no layout, in a line: by how much, and
    what would do."""
    needed, room = _table_bytes(own), own.ranks * max(_hbm_bytes(own) - beside_bytes(own), 0.0)
    has = f"{own.machine.gpus} x {own.machine.node.device.name} have beside layers and activations"
    over = f"{_gb(needed - room)} more than the {_gb(room)} that {has}"
    if needed <= room:
        over = f"which no layout spreads evenly enough over the {_gb(room)} that {has}"
    remedies = "; ".join(_remedies(own, needed, room))
    needs = f"{own.workload.name}: tables need {_gb(needed)} of device memory, {over}"
    return f"{needs}; what would do: {remedies or 'nothing that was tried'}"


def _remedies(own: Deployment, needed: float, room: float) -> Iterator[str]:
    free = _hbm_bytes(own) - CONTEXT_BYTES - needed / own.ranks
    of_batch = beside_bytes(own) - CONTEXT_BYTES
    smaller = (int(own.batch * free / of_batch * frac) for frac in BATCH_FRACS)
    if batch := next((it for it in smaller if 0 < it < own.batch and _fits(own, batch=it)), 0):
        yield f"a batch of {batch:,}"
    if needed > room > 0:
        yield f"{room / needed:.1%} of the rows"
    narrow = own.workload.with_(implementation__table_precision=NARROW)
    if narrow != own.workload and _fits(own, workload=narrow):
        yield f"{NARROW} rows (implementation.table_precision)"
    with suppress(WorkloadError):
        cached = DESIGNS[CACHED]().apply(own)
        uses = tier_use(own.workload, cached.placement, own.machine, train=own.train)
        if all(use.fits for use in uses):
            yield f"host memory behind a cache (`perfmodel compare --designs {CACHED}`)"
    # What activations take is shared by all nodes, so that fewer than these never do.
    of_node = own.machine.node.gpus * (_hbm_bytes(own) - CONTEXT_BYTES)
    fewest = max(ceil((needed + own.ranks * of_batch) / of_node), own.machine.nodes + 1)
    machines = (replace(own.machine, nodes=fewest + more) for more in range(TRIES))
    if nodes := next((it.nodes for it in machines if _fits(own, machine=it)), 0):
        yield f"{nodes} nodes"


def _fits(own: Deployment, **changes: Any) -> bool:
    """Whether the default layout of the deployment with these changes does."""
    it = replace(own, **changes)
    return holds(deployment_of(it.workload, it.machine, it.batch, train=it.train))


def _table_bytes(own: Deployment) -> float:
    optimizer = own.workload.training.table_optimizer if own.train else None
    whole = TablePlacement("table_wise", (0,), dtype=own.workload.implementation.table_precision)
    return sum(shard_bytes(table, whole, optimizer) for table in own.workload.tables)


def _hbm_bytes(own: Deployment) -> float:
    return own.machine.node.device.hbm_bytes


def _gb(size_bytes: float) -> str:
    return f"{size_bytes / BYTES_PER_GB:,.1f} GB"
