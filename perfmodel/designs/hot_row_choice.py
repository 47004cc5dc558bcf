"""Hot rows of all tables within a budget of every device: which, and what they make popular."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from perfmodel.designs.deployment import Deployment, halved
from perfmodel.embedding import HotSet, Placement, TableAccess, TablePlacement, hot_set
from perfmodel.errors import WorkloadError
from perfmodel.ops.dtypes import row_bytes
from perfmodel.workload.tables import Table

MIB = float(1 << 20)
MIN_MIB = 1.0
"""Of hot rows, less than this is not tried in the place of more."""


@dataclass(frozen=True)
class HotRowChoice:
    """Hot rows per table within a budget, `placement` with them on every device, and the share of
    samples that need no other."""

    found: HotSet
    placement: Placement
    popular_frac: float
    kept_bytes: float
    """What the kept rows take: where they were learned, more than the most popular ones."""

    @property
    def note(self) -> str:
        """What a user should know of it."""
        if self.popular_frac == 1.0:
            return (
                f"hot rows: all {self.kept_bytes / MIB:,.0f} MiB of the tables are within the "
                "budget: no sample needs another row (gpu_only needs no host)"
            )
        mib = self.kept_bytes / MIB
        return (
            f"hot rows: {mib:,.{0 if mib >= 10 else 2}f} MiB get "
            f"{self.found.overall_hot_frac:.1%} of "
            f"the lookups; {self.popular_frac:.1%} of the samples need no other"
        )


def choose_hot_rows(
    deployment: Deployment,
    budget_bytes: float,
    *,
    sampled: float = np.inf,
    popular_frac: float | None = None,
) -> HotRowChoice:
    """Hot rows of all tables in `budget_bytes` of every device, the other rows in host memory.

    They are known, or learned on `sampled` samples: then as many of the most popular as have as
    many hits stand for them. `popular_frac` is a measured share of popular
    samples; without it, lookups of a sample are taken as independent.

    On several nodes each host has an equal part of all rows, and every device all hot ones.

    Raises `WorkloadError` for a budget that holds no row of some table, a share that cannot be, and
    samples that are parted already.
    """
    if any(part.popular for part in deployment.pipeline.micro_batches):
        raise WorkloadError("hot rows: the samples are already split by hot rows")
    dtypes = tuple(placed.dtype for placed in deployment.placement.tables)
    kept, choice = _hot_rows(deployment.workload.tables, dtypes, budget_bytes, sampled)
    share = choice.popular_frac if popular_frac is None else popular_frac
    choice.mixed_hot_frac(share)
    rows = [round(count) for count in choice.rows.tolist()]
    ranks = tuple(range(deployment.ranks))

    def edit(number: int, _placed: TablePlacement) -> dict[str, Any]:
        return {
            "sharding": "data_parallel",
            "ranks": ranks,
            "tier": "host",
            "pooled_on": "device",
            "hot_rows": rows[number],
            "caches": (),
        }

    placement = deployment.placement.edited(edit)
    return HotRowChoice(choice, placement, share, kept.used_bytes)


@lru_cache(maxsize=64)
def _hot_rows(
    tables: tuple[Table, ...], dtypes: tuple[str, ...], budget_bytes: float, sampled: float
) -> tuple[HotSet, HotSet]:
    """What is kept, and the same in whole rows; designs with half a budget ask for what others
    with all of it have asked for."""
    accesses = [
        TableAccess(
            popularity=table.popularity(),
            lookups=table.pooling,
            row_bytes=float(row_bytes(dtype, table.dim)),
        )
        for table, dtype in zip(tables, dtypes, strict=True)
    ]
    least = sum(access.row_bytes for access in accesses)
    if not budget_bytes >= least:
        raise WorkloadError(
            f"hot rows: a budget of {budget_bytes:g} bytes: expected at least a row of each of "
            f"{len(tables)} tables, {least:g}"
        )
    kept = hot_set(accesses, budget_bytes, sampled=sampled)
    return kept, _whole_rows(kept, accesses)


def _whole_rows(hot: HotSet, tables: Sequence[TableAccess]) -> HotSet:
    """The same with whole rows, at least one per table, the most popular ones."""
    pairs = list(zip(tables, hot.hot_frac.tolist(), strict=True))
    rows = [max(float(np.floor(each.popularity.hot_rows(share))), 1.0) for each, share in pairs]
    share = [
        float(each.popularity.covered_frac(n)) for (each, _), n in zip(pairs, rows, strict=True)
    ]
    return replace(hot, rows=np.array(rows), hot_frac=np.array(share))


def multi_hot_note(design: str, deployment: Deployment, popular_frac: float) -> tuple[str, ...]:
    """Why samples that look up many rows are not popular, where next to none is."""
    lookups = sum(table.pooling for table in deployment.workload.tables)
    if popular_frac >= 1e-3:
        return ()
    few = f"{popular_frac:.2g} of the samples are" if popular_frac > 1e-9 else "no sample is"
    return (
        f"{few} popular: all {lookups:g} rows of one must be hot; independent lookups are taken, a "
        f"measured share is {design}.popular_frac",
    )


def smaller(
    deployment: Deployment, hot_mib: float, popular_frac: float | None, sampled: float
) -> list[tuple[float, float | None]]:
    """Half of `hot_mib`, a quarter and so on, each with the share of popular samples: as measured,
    or what of it so few rows allow at most. So more popular samples never ask for more rows."""
    sizes = halved(hot_mib, MIN_MIB)
    if popular_frac is None:
        return [(size, None) for size in sizes]
    tables = deployment.workload.tables
    dtypes = tuple(placed.dtype for placed in deployment.placement.tables)
    found: list[tuple[float, float | None]] = []
    for size in sizes:
        try:
            _, choice = _hot_rows(tables, dtypes, size * MIB, sampled)
        except WorkloadError:  # not a row of each table
            break
        found.append((size, min(popular_frac, float(choice.hot_frac.min()))))
    return found
