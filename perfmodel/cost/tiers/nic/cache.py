"""What a cache of rows in an adapter finds: the contract of its models, and what follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from perfmodel.arrays import Floats
from perfmodel.embedding.cache import TableAccess, shared_classes
from perfmodel.embedding.popularity import Popularity
from perfmodel.errors import WorkloadError
from perfmodel.registry import Registry


@dataclass(frozen=True)
class NicTable:
    """One table as one batch looks it up: so many `lookups` of `pooling` each per bag.

    `together`: the rows of a bag always come together (a key brings them), else independently.
    """

    popularity: Popularity
    lookups: float
    row_bytes: float
    pooling: float = 1.0
    together: bool = False
    name: str = ""

    @property
    def access(self) -> TableAccess:
        """For `perfmodel.embedding`; raises `WorkloadError` where nothing is looked up."""
        return TableAccess(
            popularity=self.popularity,
            lookups=self.lookups,
            row_bytes=self.row_bytes,
            name=self.name,
        )


@dataclass(frozen=True)
class NicLoad:
    """What one adapter's cache of `capacity_bytes` sees of a batch of `queries`.

    `policy` is a name of `perfmodel.embedding.POLICIES`. `reuse`: of queries that follow one
    another in the order in which they come, how many, and their lookups per distinct row over
    those of independent lookups (`measured_reuse`); none says that they share popular rows alone.
    """

    tables: tuple[NicTable, ...]
    capacity_bytes: float
    queries: float
    policy: str = "lru"
    reuse: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        if not self.capacity_bytes > 0:
            raise WorkloadError(f"adapter's cache: a capacity of {self.capacity_bytes:g} bytes")
        held = sum(table.popularity.total_rows * table.row_bytes for table in self.tables)
        if self.tables and self.capacity_bytes > held:
            raise WorkloadError(
                f"adapter's cache: {self.capacity_bytes:.4g} bytes for rows of {held:.4g} in all: "
                "a cache larger than its tables; replicate them instead"
            )
        if not (self.queries > 0 and all(min(pair) > 0 for pair in self.reuse)):
            raise WorkloadError("adapter's cache: queries and ratios of reuse must be positive")


class NicCacheModel(Protocol):
    """Says for whole loads at once how likely a row of each class is there."""

    def residency(self, load: NicLoad) -> Floats:
        """Share of the lookups of each class (`shared_classes` of the tables) that hit."""
        ...


NIC_CACHES: Registry[NicCacheModel] = Registry(
    "NIC cache model", "perfmodel.nic_caches", "perfmodel.cost.tiers.nic"
)
"""`heuristic`: closed forms of locality; `learned`: corrected by what exact replays say."""


@dataclass(frozen=True, eq=False)
class NicHits:
    """Per table `[tables]`: shares of the lookups, and of the bags all of whose lookups, hit.

    `missed` are the tables as what goes on sees them: fewer lookups, of less popular rows; None
    where nothing goes on.
    """

    hit_frac: Floats
    bags_hit_frac: Floats
    missed: tuple[NicTable | None, ...]
    overall_hit_frac: float
    """Of the lookups of all tables."""
    tables: tuple[NicTable, ...]
    residency: tuple[Floats, ...]
    """Per table, of each class of its rows."""

    def held_rows(self, number: int, lookups: float) -> float:
        """Rows of a table that the cache holds and so many lookups of it touch."""
        popularity = self.tables[number].popularity
        touched = -popularity.rows * np.expm1(-popularity.chance * lookups)
        return float(np.dot(touched, self.residency[number]))


def nic_hits(load: NicLoad, model: str = "learned") -> NicHits:
    """What a batch finds in the cache, by a model of `NIC_CACHES`; raises `PerfmodelError`."""
    return hits_by_residency(load, NIC_CACHES[model].residency(load))


def hits_by_residency(load: NicLoad, residency: Floats) -> NicHits:
    """The same from the residency of each class."""
    _, owner = shared_classes([table.access for table in load.tables])
    hits, bags, missed, held = [], [], [], []
    for number, table in enumerate(load.tables):
        kept = residency[owner == number]
        held.append(kept)
        share = table.popularity.share
        hit = float(np.clip(np.dot(kept, share), 0.0, 1.0))
        hits.append(hit)
        bags.append(hit if table.together else hit ** max(table.pooling, 1.0))
        missed.append(_beyond(table, share * (1.0 - kept), hit))
    looked_up = np.array([table.lookups for table in load.tables])
    hit_counts = np.array(hits)
    overall = float(np.dot(hit_counts, looked_up) / looked_up.sum())
    return NicHits(hit_counts, np.array(bags), tuple(missed), overall, load.tables, tuple(held))


def _beyond(table: NicTable, share: Floats, hit: float) -> NicTable | None:
    """What misses, as a table of its own."""
    left = 1.0 - hit
    if left * table.lookups < 1e-9 or not share.sum() > 0:
        return None
    return replace(
        table,
        popularity=Popularity(table.popularity.rows, share / share.sum()),
        lookups=table.lookups * left,
        pooling=table.pooling * left,
    )


def whole_bag_hits(hits: NicHits) -> NicHits:
    """The same where only bags that are found whole are served; all others go on whole."""
    missed = tuple(
        replace(table, lookups=table.lookups * (1.0 - bags)) if bags < 1.0 - 1e-9 else None
        for table, bags in zip(hits.tables, hits.bags_hit_frac.tolist(), strict=True)
    )
    lookups = np.array([table.lookups for table in hits.tables])
    overall = float(np.dot(hits.bags_hit_frac, lookups) / lookups.sum())
    return replace(hits, hit_frac=hits.bags_hit_frac, missed=missed, overall_hit_frac=overall)


def table_accesses(tables: Sequence[NicTable]) -> list[TableAccess]:
    """All of them for `perfmodel.embedding`."""
    return [table.access for table in tables]
