"""What looking up and updating shards takes, and what exchanging their pooled rows takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, log2

import numpy as np

from perfmodel.arrays import Floats
from perfmodel.cost.durations import durations_of
from perfmodel.designs import Deployment
from perfmodel.embedding import (
    Cache,
    RowDtype,
    SetAssociativeLru,
    TableAccess,
    TablePlacement,
    steady_use,
)
from perfmodel.embedding.memories import EXPANSION, STORAGE
from perfmodel.explore.planner.problem import ANY, EVERY, Way
from perfmodel.hardware import Cluster
from perfmodel.lowering.build_cpu import rows_of
from perfmodel.lowering.piece import Piece
from perfmodel.lowering.rules.movement import scan, sorted_rows
from perfmodel.ops.rows import Rows
from perfmodel.prediction.scheduled import place_collectives
from perfmodel.workload.memory_tiers import shard_bytes
from perfmodel.workload.tables import Table, state_bytes

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
    times_us = dict(zip(distinct, each.tolist(), strict=True))
    return np.array([times_us[shape] for shape in shapes])


def missed_us(deployment: Deployment, ways: Sequence[Way]) -> Floats:
    """Per way outside device memory, time of rows that its cache misses: over the bus, from drives
    or expansion memory as well, and in training as many back; else 0. `[ways]`."""
    bus = (deployment.machine.node.device.pcie_gb_per_s or 1.0) * 1e3
    turns = 2.0 if deployment.train else 1.0
    missed, row_bytes = _missed(deployment, ways)
    times_us = missed * row_bytes * turns / bus
    stored = [number for number, way in enumerate(ways) if way.tier in (EXPANSION, STORAGE)]
    together = np.array([_shape(deployment, ways[number])[3] for number in stored], np.float64)
    for op in ("storage_read", "storage_write")[: int(turns)] if stored else ():
        asked = [
            {
                "op": op,
                "rows": missed[number] * count,
                "row_bytes": row_bytes[number],
                "expansion": float(ways[number].tier == EXPANSION),
            }
            for number, count in zip(stored, together.tolist(), strict=True)
        ]
        times_us[stored] += durations_of(Rows.of(asked), deployment.machine).duration_us / together
    return times_us


def _missed(deployment: Deployment, ways: Sequence[Way]) -> tuple[Floats, Floats]:
    """Per way, how many rows of a batch its cache misses in the steady state, and their bytes."""
    seen: dict[tuple[Table, RowDtype, float], tuple[float, float]] = {}
    rows, row_bytes = np.zeros(len(ways)), np.ones(len(ways))
    for number, way in enumerate(ways):
        if way.tier == "hbm":
            continue
        key = way.shard, way.dtype, way.cached_frac
        if key not in seen:
            size = shard_bytes(way.shard, TablePlacement("table_wise", (0,), dtype=way.dtype), None)
            row = size / way.shard.rows
            popularity = way.shard.popularity()
            samples = way.shard.lookups(deployment.batch)
            access = TableAccess(popularity=popularity, lookups=samples, row_bytes=row)
            use = steady_use([access], Cache(max(way.cached_frac * size, row), SetAssociativeLru()))
            seen[key] = float(use.fetched_rows[0]), row
        rows[number], row_bytes[number] = seen[key]
    return rows, row_bytes


def _shape(deployment: Deployment, way: Way) -> Shape:
    samples = deployment.batch
    held = deployment.placement.tables
    share = {ANY: 1.0, EVERY: float(deployment.ranks)}.get(
        way.reach, float(deployment.machine.linked_gpus)
    )
    if way.sharding == "data_parallel":
        samples //= deployment.ranks
    together = int(np.clip(round(len(held) * share / deployment.ranks), 1, MOST_TOGETHER))
    if deployment.workload.sequence.layers:
        return replace(way.shard, pooling=1.0), way.dtype, way.shard.lookups(samples), together
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


LOW, HIGH = 0.5, 2.0
"""Between these multiples of the usual size the line is exact."""


@dataclass(frozen=True)
class ExchangeLine:
    """Microseconds of one collective: `fixed_us`, and `us_per_byte` of its size."""

    fixed_us: float = 0.0
    us_per_byte: float = 0.0


def exchange_line(
    machine: Cluster, op: str, ranks: int, size_bytes: float, nodes: int | None = None
) -> ExchangeLine:
    """Of `op` among `ranks`, around `size_bytes` as nccl-tests define it."""
    if ranks <= 1 or size_bytes <= 0:
        return ExchangeLine()
    rows = [
        {"op": op, "ranks": float(ranks), "size_bytes": max(size_bytes * factor, 1.0)}
        for factor in (LOW, HIGH)
    ]
    if nodes is not None:
        rows = [{**row, "nodes": float(nodes)} for row in rows]
    low_us, high_us = durations_of(
        place_collectives(Rows.of(rows), machine), machine
    ).duration_us.tolist()
    slope = max(high_us - low_us, 0.0) / (size_bytes * (HIGH - LOW))
    return ExchangeLine(max(low_us - slope * size_bytes * LOW, 0.0), slope)
