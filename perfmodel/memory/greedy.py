"""A plain placement that fits: tables by size, each to the emptiest rank, the largest in rows."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.hardware import Cluster
from perfmodel.memory.tiers import shard_bytes, tier_use
from perfmodel.memory.use import CONTEXT_BYTES
from perfmodel.placement import Placement, TablePlacement
from perfmodel.workload import Workload

ROOM_FRAC = 0.1
"""Assumed: of device memory, left for parameters and activations."""


def fits(workload: Workload, placement: Placement, machine: Cluster, *, train: bool) -> bool:
    """Whether tables, caches and hot rows leave `ROOM_FRAC` of every device's memory."""
    use = tier_use(workload, placement, machine, train=train)[0]
    return use.total_bytes <= (1 - ROOM_FRAC) * machine.node.device.hbm_bytes


def greedy_placement(workload: Workload, machine: Cluster, *, train: bool) -> Placement | None:
    """All tables in device memory, or None where that is too little even in equal parts.

    The largest first, each whole to the rank with the least so far; as few as possible, the largest
    again, in row-wise parts on all ranks.
    """
    ranks, tables = machine.gpus, workload.tables
    dtype = workload.implementation.table_precision
    optimizer = workload.training.table_optimizer if train else None
    whole = TablePlacement("table_wise", (0,), dtype=dtype)
    size = [shard_bytes(table, whole, optimizer) for table in tables]
    order = sorted(range(len(tables)), key=lambda number: -size[number])
    room = (1 - ROOM_FRAC) * machine.node.device.hbm_bytes - CONTEXT_BYTES
    for parted in range(len(tables) + 1):
        owner = _dealt(
            size, order[parted:], sum(size[n] for n in order[:parted]) / ranks, ranks, room
        )
        if owner is not None:
            break
    else:
        return None
    rows = set(order[:parted])
    every = tuple(range(ranks))
    return Placement(
        tuple(
            TablePlacement("row_wise", every[: tables[number].rows], dtype=dtype)
            if number in rows
            else TablePlacement("table_wise", (owner[number],), dtype=dtype)
            for number in range(len(tables))
        )
    )


def _dealt(
    size: Sequence[float], order: Sequence[int], held: float, ranks: int, room: float
) -> dict[int, int] | None:
    """Tables to ranks that hold `held` each; None where one gets more than its `room`."""
    load = [held] * ranks
    owner = {}
    for number in order:
        rank = load.index(min(load))
        load[rank] += size[number]
        owner[number] = rank
    return owner if max(load) <= room else None
