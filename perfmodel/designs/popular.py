"""The hot rows of a deployment's tables: which there are, and what an edit makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from perfmodel.designs.deployment import Deployment
from perfmodel.errors import WorkloadError
from perfmodel.locality import HotSet, TableAccess, hot_set
from perfmodel.ops.stored_rows import row_bytes
from perfmodel.placement import Placement, TablePlacement

MIB = float(1 << 20)
LEAST_MIB = 1.0
"""Of hot rows, less than this is not tried in the place of more."""


@dataclass(frozen=True)
class Popular:
    """Hot rows per table within a budget, `placement` with them on every device, and the share of
    samples that need no other."""

    found: HotSet
    placement: Placement
    popular_frac: float
    kept_bytes: float
    """What the kept rows take: where they were learned, more than the most popular ones."""
    kept_rows: float
    """How many they are."""

    @property
    def note(self) -> str:
        """What a user should know of it."""
        if self.popular_frac == 1.0:
            return (
                f"hot rows: all {self.kept_bytes / MIB:,.0f} MiB of the tables are within the "
                "budget: no sample needs another row (gpu_only needs no host)"
            )
        return (
            f"hot rows: {self.kept_bytes / MIB:,.0f} MiB get {self.found.overall_hot_frac:.1%} of "
            f"the lookups; {self.popular_frac:.1%} of the samples need no other"
        )


def require_settings(design: str, hot_mib: float, popular_frac: float | None) -> None:
    """Raises `WorkloadError` for what is no size, and what is no share."""
    if not 0.0 < hot_mib < np.inf:
        raise WorkloadError(f"{design}: {hot_mib:g} MiB of hot rows: expected more than 0")
    if popular_frac is not None and not 0.0 <= popular_frac <= 1.0:
        raise WorkloadError(f"{design}: popular_frac {popular_frac:g}: expected 0 to 1")


def popular(
    deployment: Deployment,
    budget_bytes: float,
    *,
    sampled: float = np.inf,
    popular_frac: float | None = None,
) -> Popular:
    """Hot rows of all tables in `budget_bytes` of every device, the other rows in host memory.

    They are known, or learned on `sampled` samples: then as many of the most popular as have as
    many hits stand for them. `popular_frac` is a measured share of popular
    samples; without it, lookups of a sample are taken as independent.

    Raises `WorkloadError` for a budget that holds no row of some table, a share that cannot be,
    samples that are parted already, and several nodes, whose hosts would each have all rows.
    """
    if deployment.machine.nodes > 1:
        raise WorkloadError(
            f"hot rows: {deployment.machine.nodes} nodes: the other rows lie in one host's memory"
        )
    if any(part.popular for part in deployment.pipeline.micro_batches):
        raise WorkloadError("hot rows: samples that are parted by them are not parted again")
    tables, dtypes = deployment.workload.tables, [t.dtype for t in deployment.placement.tables]
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
    found = _whole(kept, accesses)
    share = found.popular_frac if popular_frac is None else popular_frac
    found.mixed_hot_frac(share)
    rows = [round(count) for count in found.rows.tolist()]
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
    return Popular(found, placement, share, kept.used_bytes, float(kept.rows.sum()))


def _whole(found: HotSet, tables: Sequence[TableAccess]) -> HotSet:
    """The same with whole rows, at least one per table, the most popular ones."""
    pairs = list(zip(tables, found.hot_frac.tolist(), strict=True))
    rows = [max(float(np.floor(each.popularity.hot_rows(share))), 1.0) for each, share in pairs]
    share = [
        float(each.popularity.covered_frac(n)) for (each, _), n in zip(pairs, rows, strict=True)
    ]
    return replace(found, rows=np.array(rows), hot_frac=np.array(share))
