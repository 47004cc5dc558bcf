"""What a batch finds in a cache of rows, from its capacity and the tables' popularity."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.errors import WorkloadError
from perfmodel.locality import POLICIES, Cache, TableAccess, steady_use
from perfmodel.placement import RowCache
from perfmodel.units import BYTES_PER_GB
from perfmodel.workload.tiered.beside import row_bytes
from perfmodel.workload.tiered.source import Group, groups_of

FETCHED = {"pipeline": "fetch"}
"""Attribute of what brings rows for a later step, beside this one."""
LEAST_ROWS = 0.5
"""Fewer expected rows than this are none; else at least one is fetched."""


def ahead(group: Group, stream: str = "") -> dict[str, str]:
    """Attributes of ops that bring rows: with `rows_ahead`, for the next step (on `stream`)."""
    pipeline = group.run.pipeline
    if pipeline is None or not pipeline.rows_ahead:
        return {}
    return {**FETCHED, "stream": stream} if stream else FETCHED


@dataclass(frozen=True)
class Use:
    """Per batch: of a group's `lookups` how many miss; of its `unique_rows` how many are fetched.
    With `cache.batches_ahead`, one batch's part of a fetch for several. `held_rows` of the cache
    are the group's.
    """

    cache: RowCache
    lookups: float
    unique_rows: float
    missed_lookups: float
    missed_rows: float
    held_rows: float
    row_bytes: float

    @property
    def hit_frac(self) -> float:
        """Of all the group's lookups."""
        return 1 - self.missed_lookups / self.lookups


def use_of(group: Group, name: str) -> Use:
    """What `group` finds in the cache `name`, which it shares with others of its rank.

    Raises `WorkloadError` where one fetch needs more rows than the cache holds.
    """
    assert group.run.placement is not None
    cache = group.run.placement.cache(name)
    if cache.policy not in POLICIES:
        raise WorkloadError(
            f"cache {name!r}: unknown policy {cache.policy!r}: one of {', '.join(POLICIES)}"
        )
    sharing = [
        one.of_samples(group.run) for one in groups_of(group.run) if name in one.placed.caches
    ]
    tables = [access for one in sharing for access in _accesses(one, cache.batches_ahead)]
    found = steady_use(tables, Cache(cache.capacity_bytes, POLICIES[cache.policy]()))
    first = 0
    for one in sharing:
        if (one.tables, one.replicated) == (group.tables, group.replicated):
            break
        first += len(one.tables)
    own = slice(first, first + len(group.tables))
    needed = float(np.dot(found.distinct_rows, found.row_bytes))
    if needed > cache.capacity_bytes * (1 + 1e-9):
        raise WorkloadError(_too_small(cache, needed))
    lookups, batches = float(found.lookups[own].sum()), cache.batches_ahead
    return Use(
        cache,
        lookups / batches,
        float(found.distinct_rows[own].sum()) / batches,
        float(np.dot(1 - found.hit_frac[own], found.lookups[own])) / batches,
        _fetched(float(found.fetched_rows[own].sum()) / batches),
        float(found.cached_rows[own].sum()),
        float(np.dot(found.row_bytes[own], found.lookups[own])) / lookups,
    )


def _too_small(cache: RowCache, needed_bytes: float) -> str:
    """FBGEMM's kernels leave a row that finds no free place where it was, and lookups read it there
    (but rows on drives, which must fit)."""
    count = cache.batches_ahead
    over_bus = cache.at == "hbm" and cache.kept_by == "kernels"
    return (
        f"cache {cache.name!r}: the rows of {f'{count} batches' if count > 1 else 'one batch'} "
        f"take {needed_bytes / BYTES_PER_GB:.3g} GB, it holds "
        f"{cache.capacity_bytes / BYTES_PER_GB:.3g} GB: take a larger cache or a smaller batch"
        + (" (FBGEMM reads the others over the bus, which is not modelled)" if over_bus else "")
    )


def _fetched(rows: float) -> float:
    return max(rows, 1.0) if rows >= LEAST_ROWS else 0.0


def _accesses(group: Group, batches: int) -> list[TableAccess]:
    return [
        TableAccess(
            popularity=table.popularity(),
            lookups=table.lookups(group.samples) * batches,
            row_bytes=row_bytes(table, group.placed.dtype),
        )
        for table in group.tables
    ]
