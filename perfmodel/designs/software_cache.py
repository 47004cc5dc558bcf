"""Software caches: tables in host memory, the rows in use in device memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from perfmodel.designs.budget import halved
from perfmodel.designs.deployment import DESIGNS, Deployment, Design
from perfmodel.errors import WorkloadError
from perfmodel.locality import POLICIES
from perfmodel.placement import RowCache
from perfmodel.workload.tiered.beside import row_bytes

LEAST_FRAC = 1e-3
"""Of the rows, less than this is not tried in the place of more."""
MAP_BYTES = 8.0
"""An int64 per row, in each of two maps, and per place of the cache."""


@dataclass(frozen=True)
class SoftwareCache:
    """Tables in host memory behind a cache of rows in device memory.

    `kept_by` `kernels` is FBGEMM's UVM caching (sets of 32 rows), `operators` the frequency-aware
    cache of CachedEmbedding, which keeps the most popular rows. `cache_frac` of each rank's rows
    fit into its cache (FBGEMM's default: 0.2; CachedEmbedding's benchmark: 0.01). Rows of
    `batches_ahead` batches are fetched at once; `rows_ahead`: beside the step before. Tables of at
    most `keep_bytes`, and those that every rank has, stay in device memory.
    """

    kept_by: Literal["kernels", "operators"] = "kernels"
    cache_frac: float = 0.2
    policy: str = "set_associative"
    batches_ahead: int = 1
    rows_ahead: bool = False
    keep_bytes: int = 0

    def __post_init__(self) -> None:
        if not self.cache_frac > 0:
            raise WorkloadError(f"software_cache: a cache of {self.cache_frac:g} of the rows")
        if self.cache_frac > 1:
            raise WorkloadError(
                f"software_cache: a cache of {self.cache_frac:g} times the rows is larger than the "
                "tables: leave them in device memory"
            )
        if self.batches_ahead < 1 or self.keep_bytes < 0:
            raise WorkloadError(
                f"software_cache: {self.batches_ahead} batches ahead, tables of {self.keep_bytes} "
                "bytes stay: expected 1 or more, and 0 or more"
            )
        if self.policy not in POLICIES:
            raise WorkloadError(
                f"software_cache: unknown policy {self.policy!r}: one of {', '.join(POLICIES)}"
            )
        if self.kept_by not in ("kernels", "operators"):
            raise WorkloadError(f"software_cache: kept_by {self.kept_by!r}: kernels or operators")
        if self.rows_ahead and self.kept_by == "operators":
            raise WorkloadError(
                "software_cache: operators wait for every count, so no rows are fetched beside a "
                "step: fetch those of several batches at once (batches_ahead)"
            )

    def apply(self, deployment: Deployment) -> Deployment:
        """All tables but the smallest to host memory, one cache on each rank."""
        if deployment.machine.node.device.target == "cpu":
            raise WorkloadError(
                "software_cache: a CPU's device memory is its host's: nothing to keep closer"
            )
        held = [
            table.rows * row_bytes(table, placed.dtype)
            for table, placed in zip(
                deployment.workload.tables, deployment.placement.tables, strict=True
            )
        ]
        moved = [
            placed.tier == "hbm" and placed.sharding != "data_parallel" and size > self.keep_bytes
            for placed, size in zip(deployment.placement.tables, held, strict=True)
        ]
        total = sum(size for size, is_moved in zip(held, moved, strict=True) if is_moved)
        if not total:
            raise WorkloadError("software_cache: no table in device memory that could be cached")
        cache = RowCache(
            "rows",
            "hbm",
            self.cache_frac * total / deployment.ranks,
            self.policy,
            self.kept_by,
            self.batches_ahead,
        )
        placement = deployment.placement.edited(
            lambda number, _: {"tier": "host", "caches": ("rows",)} if moved[number] else {},
            caches=(cache,),
        )
        pipeline = replace(deployment.pipeline, rows_ahead=self.rows_ahead)
        note = f"software cache: {cache.capacity_bytes / 1e9:.3g} GB of rows on each device"
        return deployment.with_(note, placement=placement, pipeline=pipeline)

    def within(self, deployment: Deployment) -> Iterable[Design]:
        """With a smaller cache."""
        return [replace(self, cache_frac=frac) for frac in halved(self.cache_frac, LEAST_FRAC)]


DESIGNS.register("software_cache")(SoftwareCache)


def frequency_aware(cache_frac: float = 0.01, batches_ahead: int = 1) -> SoftwareCache:
    """CachedEmbedding as its benchmark runs it: the most popular rows of the data set stay."""
    return SoftwareCache("operators", cache_frac, "static", batches_ahead)


def frequency_aware_bytes(
    rows: float, dim: int, cache_rows: float, item_bytes: float = 4.0
) -> float:
    """Device memory of the frequency-aware cache: C (D w + 8) + 16 E, maps of all rows among it.

    Source: hpcaitech/ColossalAI, cache_mgr.py: `idx_map` and `inverted_cached_idx` hold an int64
    per row, `cached_idx_map` one per place.
    """
    return cache_rows * (dim * item_bytes + MAP_BYTES) + 2 * MAP_BYTES * rows
