"""What looking up and updating shards takes, by the kernel models: one shard among others."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log2

import numpy as np

from perfmodel.designs import Deployment
from perfmodel.duration import durations_of
from perfmodel.locality import Cache, SetAssociativeLru, TableAccess, steady_use
from perfmodel.lowering.piece import Piece
from perfmodel.lowering.rules.sort import scan, sorted_rows
from perfmodel.lowering.step_rows import rows_of
from perfmodel.memory.tiers import shard_bytes
from perfmodel.placement import RowDtype, TablePlacement
from perfmodel.plan.problem import ANY, EVERY, Floats
from perfmodel.plan.shards import Way
from perfmodel.workload.tables import Table
from perfmodel.workload.tiered.beside import state_bytes

MOST_TOGETHER = 16
"""Shards that one call is reckoned with, at most; more change little."""
Shape = tuple[Table, RowDtype, int, int]
"""A shard, the type of its rows, samples that look it up, shards in one call with it."""


def lookup_us(deployment: Deployment, ways: Sequence[Way]) -> Floats:
    """Per way, what one shard adds to its rank's lookups and, in training, to their backward pass:
    its share of a call over as many alike as a rank has. `[ways]`."""
    shapes = [_shape(deployment, way) for way in ways]
    distinct = list(dict.fromkeys(shapes))
    pieces, owner = [], []
    for number, shape in enumerate(distinct):
        own = _pieces(deployment, shape)
        pieces += own
        owner += [number] * len(own)
    taken = durations_of(rows_of(pieces), deployment.machine).duration_us
    together = np.array([shape[3] for shape in distinct], np.float64)
    each = np.bincount(owner, taken, len(distinct)) / together
    found = dict(zip(distinct, each.tolist(), strict=True))
    return np.array([found[shape] for shape in shapes])


def missed_us(deployment: Deployment, ways: Sequence[Way]) -> Floats:
    """Per way in host memory, rows that its cache misses over the bus, both directions, 0 else."""
    bus = (deployment.machine.node.device.pcie_gb_per_s or 1.0) * 1e3
    seen: dict[tuple[Table, RowDtype, float], float] = {}
    found = np.zeros(len(ways))
    for number, way in enumerate(ways):
        if way.tier != "host":
            continue
        key = way.shard, way.dtype, way.cached_frac
        if key not in seen:
            size = shard_bytes(way.shard, TablePlacement("table_wise", (0,), dtype=way.dtype), None)
            row = size / way.shard.rows
            popularity = way.shard.popularity()
            samples = way.shard.lookups(deployment.batch)
            access = TableAccess(popularity=popularity, lookups=samples, row_bytes=row)
            use = steady_use([access], Cache(max(way.cached_frac * size, row), SetAssociativeLru()))
            seen[key] = float(use.fetched_rows[0]) * row * 2 / bus
        found[number] = seen[key]
    return found


def _shape(deployment: Deployment, way: Way) -> Shape:
    samples = deployment.batch
    held = deployment.placement.tables
    share = {ANY: 1.0, EVERY: float(deployment.ranks)}.get(
        way.reach, float(deployment.machine.linked_gpus)
    )
    if way.sharding == "data_parallel":
        samples //= deployment.ranks
    together = int(np.clip(round(len(held) * share / deployment.ranks), 1, MOST_TOGETHER))
    return way.shard, way.dtype, samples, together


def _pieces(deployment: Deployment, shape: Shape) -> list[Piece]:
    """Kernels of one call over `together` such tables, and of its backward."""
    table, dtype, samples, together = shape
    looked_up = float(table.lookups(samples) * together)
    dims = {
        "tables": float(together),
        "batch": float(samples),
        "lookups": looked_up,
        "dim": float(table.dim),
        "hash_size": float(table.rows),
        "unique_rows": table.unique_rows(samples) * together,
        "longest_bag": max(table.pooling, 1.0),
    }
    pieces = [Piece("tbe", dims, dtype)]
    if not deployment.train:
        return pieces
    optimizer = deployment.workload.training.table_optimizer
    bits = float(ceil(log2(table.rows * together + 1)))
    bags = float(samples * together)
    count = round(looked_up)
    return [
        *pieces,
        Piece("linearize_index", {"elements": looked_up, "segments": bags}, "int64"),
        *sorted_rows(1, count, "int64", key_bits=bits),
        *scan(count, "int64", "run_length_encode"),
        *scan(count, "int32"),
        Piece("tbe", {**dims, "state_bytes": state_bytes(table, optimizer)}, dtype, "bwd"),
    ]
