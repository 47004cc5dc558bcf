"""Ways to lay out the tables of a workload: shards, who may hold them, and their bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from perfmodel.designs import Deployment
from perfmodel.memory.tiers import shard_bytes
from perfmodel.placement import RowDtype, Sharding, TablePlacement, Tier
from perfmodel.plan.problem import ANY, EVERY, GROUP
from perfmodel.workload.tables import Table

LEAST_COLUMNS = 32
"""Narrower slices of a row waste the sectors that memory is read in."""
MOST_REPLICATED_BYTES = 1e9
"""Larger tables are not considered on every rank: their gradients alone take longer than rows."""
CACHED_FRACS = (0.5, 0.2, 0.05, 0.01)
"""Of a table beside device memory, what its cache there may hold: FBGEMM's 0.2, more and less."""
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
    host_bytes: float = 0.0
    storage_bytes: float = 0.0
    cached_frac: float = 0.0
    """Of a shard beside device memory, what that caches."""


def ways(deployment: Deployment, beside: Sequence[Tier] = ()) -> Iterator[Way]:
    """Every way that the deployment's machine allows, table by table; also in the memories `beside`
    the device's, behind caches of `CACHED_FRACS` of the shard there."""
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
                    yield Way(number, sharding, "hbm", parts, reach, shard, dtype, size)
                continue
            way = Way(number, sharding, "hbm", parts, reach, shard, dtype, size)
            yield way
            for tier, cached in product(beside, CACHED_FRACS):
                yield replace(
                    way,
                    tier=tier,
                    cached_frac=cached,
                    hbm_bytes=cached * size,
                    host_bytes=size if tier == "host" else 0.0,
                    storage_bytes=size if tier == "storage" else 0.0,
                )


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
