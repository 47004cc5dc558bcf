"""Ways to lay out the tables of a workload: shards, who may hold them, and their bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from perfmodel.designs import Deployment
from perfmodel.memory.tiers import shard_bytes
from perfmodel.placement import RowDtype, Sharding, TablePlacement, Tier
from perfmodel.plan.problem import ANY, EVERY, GROUP
from perfmodel.workload.tables import Table

LEAST_COLUMNS = 32
"""Narrower slices of a row waste the sectors that memory is read in."""
MOST_REPLICATED_BYTES = 1e9
"""Larger tables are not considered on every rank: their gradients alone take longer than rows."""
CACHED_FRACS = (0.2, 0.02)
"""Of a table in host memory, what its cache in device memory may hold: FBGEMM's default, less."""
GRADIENT_BYTES = 4.0


@dataclass(frozen=True)
class Way:
    """One way to lay out table `number`: `shard` is what each of `parts` ranks looks up."""

    number: int
    sharding: Sharding
    tier: Tier
    parts: int
    reach: int
    shard: Table
    dtype: RowDtype
    hbm_bytes: float
    host_bytes: float
    cached_frac: float = 0.0
    """Of a shard in host memory, what device memory caches."""


def ways(deployment: Deployment, *, with_host: bool) -> Iterator[Way]:
    """Every way that the deployment's machine allows, table by table; `with_host`: also in host
    memory behind caches of `CACHED_FRACS` of the shard in device memory."""
    optimizer = deployment.workload.training.table_optimizer if deployment.train else None
    for number, table in enumerate(deployment.workload.tables):
        dtype = deployment.placement.tables[number].dtype
        for sharding, parts, reach in _shardings(table, deployment):
            kind = replace(PLAIN, sharding=sharding, ranks=tuple(range(parts)), dtype=dtype)
            size = shard_bytes(table, kind, optimizer)
            shard = _shard(table, sharding, parts)
            if sharding == "data_parallel":
                size += table.rows * table.dim * GRADIENT_BYTES if deployment.train else 0.0
                if size <= MOST_REPLICATED_BYTES:
                    yield Way(number, sharding, "hbm", parts, reach, shard, dtype, size, 0.0)
                continue
            yield Way(number, sharding, "hbm", parts, reach, shard, dtype, size, 0.0)
            for cached in CACHED_FRACS if with_host else ():
                held = cached * size, size, cached
                yield Way(number, sharding, "host", parts, reach, shard, dtype, *held)


PLAIN = TablePlacement("column_wise", (0,))


def _shardings(table: Table, deployment: Deployment) -> Iterator[tuple[Sharding, int, int]]:
    """Sharding, number of shards, and whose ranks hold them."""
    ranks, linked = deployment.ranks, deployment.machine.linked_gpus
    yield "table_wise", 1, ANY
    if ranks == 1:
        return
    parts = 2
    while parts <= ranks and table.dim % parts == 0 and table.dim // parts >= LEAST_COLUMNS:
        yield "column_wise", parts, ANY
        parts *= 2
    if table.rows >= ranks:
        yield "row_wise", ranks, EVERY
    if 1 < linked < ranks and ranks % linked == 0 and table.rows >= linked:
        yield "table_row_wise", linked, GROUP
    yield "data_parallel", ranks, EVERY


def _shard(table: Table, sharding: str, parts: int) -> Table:
    if sharding == "column_wise":
        return replace(table, dim=table.dim // parts)
    if sharding in ("row_wise", "table_row_wise"):
        return replace(table, rows=-(-table.rows // parts), pooling=table.pooling / parts)
    return table
