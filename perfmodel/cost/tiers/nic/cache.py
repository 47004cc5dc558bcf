"""What a cache of rows in an adapter finds: the contract of its models; LRU in closed form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np

from perfmodel.arrays import Floats
from perfmodel.embedding.cache import TableAccess, shared_classes
from perfmodel.embedding.policies import POLICIES
from perfmodel.embedding.popularity import Popularity, touched_rows
from perfmodel.embedding.reorder import ORDERS, Queries, reordered
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


WINDOWS = (1, 4, 16, 64, 256, 1024)
"""Queries that follow one another, in which reuse is measured (those that a batch has)."""
_POINTS, _FURTHEST = 160, 1e4
"""Of the curve; its end, in batches."""


@dataclass(frozen=True, eq=False)
class Footprint:
    """`lookups` `[points]` in a row touch `distinct_bytes` `[points]`, of `lookup_bytes` each."""

    lookups: Floats
    distinct_bytes: Floats
    lookup_bytes: float

    def hit_frac(self, capacity_bytes: float) -> float:
        """Of an LRU cache: what is not new in as many lookups as fill it.

        Source: Denning and Schwartz 1972, Properties of the working-set model; Xiang et al. 2013,
        HOTL: the miss ratio is the slope of the footprint where it reaches the cache's size.
        """
        return float(np.interp(capacity_bytes, *self._hits))

    def finding(self, other: Footprint, capacity_bytes: float) -> float:
        """The cache that finds as much of these lookups as one of `capacity_bytes` of `other`'s.

        It grows with `capacity_bytes`, also beyond what the curves know.
        """
        size, hits = self._hits
        bytes_needed = float(np.interp(other.hit_frac(capacity_bytes), hits, size))
        return capacity_bytes + bytes_needed - float(np.clip(capacity_bytes, size[0], size[-1]))

    @cached_property
    def _hits(self) -> tuple[Floats, Floats]:
        """Sizes of caches, and the share of the lookups that each finds."""
        steps = np.diff(self.lookups)
        slope = np.minimum.accumulate(np.diff(self.distinct_bytes) / steps)
        reached = np.concatenate([[0.0], np.cumsum(slope * steps)]) + self.distinct_bytes[0]
        missed = np.clip(slope / self.lookup_bytes, 0.0, 1.0)
        return (reached[1:] + reached[:-1]) / 2, 1.0 - missed


def footprint(
    tables: list[TableAccess], queries: float, reuse: tuple[tuple[float, float], ...] = ()
) -> Footprint:
    """Of lookups as many-sided as the tables' popularity says; `reuse`: see `NicLoad`.

    Lookups that repeat others of their window count for nothing: so many fewer independent ones
    touch as many rows. Between one lookup, which repeats none, and measured windows that share goes
    on in the logarithm of the window; beyond the last it stays, as batches are independent.
    """
    classes, _ = shared_classes(tables)
    batch = sum(table.lookups for table in tables)
    lookups = np.geomspace(1.0, batch * _FURTHEST, _POINTS)
    counted = lookups
    if reuse:
        window, ratio = (np.array(column) for column in zip(*reuse, strict=True))
        within = window / queries * batch
        touched = touched_rows(classes.rows, classes.rate, within) / ratio
        curve = touched_rows(classes.rows, classes.rate, lookups)
        share = np.append(1.0, np.interp(touched, curve, lookups) / within)
        within = np.append(1.0, within)
        counted = lookups * np.exp(np.interp(np.log(lookups), np.log(within), np.log(share)))
    distinct = touched_rows(classes.rows * classes.row_bytes, classes.rate, counted)
    each = float(np.dot(classes.rows * classes.rate, classes.row_bytes))
    return Footprint(lookups, np.maximum.accumulate(distinct), each)


BY_RECENCY = ("lru", "set_associative")
"""Policies for which it matters in which order queries come."""
_LEAST, _FURTHEST_LOGIT, _HALVINGS = 1e-9, 45.0, 60


class ClosedForm:
    """That of the policy; with measured reuse, of the cache in which
    independent lookups would hit as often as the footprint says of these."""

    def residency(self, load: NicLoad) -> Floats:
        tables, capacity = table_accesses(load.tables), load.capacity_bytes
        if load.reuse and load.policy in BY_RECENCY:
            alone = footprint(tables, load.queries)
            capacity = alone.finding(footprint(tables, load.queries, load.reuse), capacity)
        classes, _ = shared_classes(tables)
        return POLICIES[load.policy]().residency(classes, capacity)


def logit(chance: float | Floats) -> Floats:
    """Log odds of chances, kept off 0 and 1."""
    kept = np.clip(chance, _LEAST, 1.0 - _LEAST)
    return np.asarray(np.log(kept) - np.log1p(-kept))


def share(odds: float | Floats) -> Floats:
    """Chances of log odds."""
    return np.asarray(1.0 / (1.0 + np.exp(-np.asarray(odds))))


def moved_to(residency: Floats, mass: Floats, hit_frac: float | Floats) -> Floats:
    """Residencies whose log odds are all moved alike so that they sum to `hit_frac` over `mass`."""
    odds, low, high = logit(residency), -_FURTHEST_LOGIT, _FURTHEST_LOGIT
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        moved = float(np.dot(share(odds + middle), mass))
        low, high = (middle, high) if moved < hit_frac else (low, middle)
    return share(odds + high)


NIC_CACHES.register("heuristic")(ClosedForm())


AS_THEY_COME = "as_they_come"


@dataclass(frozen=True)
class Ordered:
    """Batches in their order: `pairs` of lookups that were compared in each on average."""

    batches: tuple[Queries, ...]
    pairs: float


def in_order(batches: Sequence[Queries], order: str) -> Ordered:
    """Each batch in its `order`: as they come, or one of `ORDERS`. Raises `WorkloadError`."""
    if order == AS_THEY_COME:
        return Ordered(tuple(batches), 0.0)
    if order not in ORDERS:
        raise WorkloadError(
            f"order of queries {order!r}: expected one of {', '.join((AS_THEY_COME, *ORDERS))}"
        )
    reordered_batches = [reordered(each, order) for each in batches]
    ordered = [
        each.in_order(way.order) for each, way in zip(batches, reordered_batches, strict=True)
    ]
    return Ordered(tuple(ordered), float(np.mean([way.pairs for way in reordered_batches])))


def measured_reuse(
    batches: Sequence[Queries], popularity: Popularity
) -> tuple[tuple[float, float], ...]:
    """For `NicLoad.reuse`: of `batches` of equal size whose rows are as popular as stated.

    Lookups per distinct row within the windows that a batch has, over those of independent ones.
    """
    queries = len(batches[0])
    lookups = float(np.mean([len(each.rows) for each in batches])) / queries
    windows = [window for window in WINDOWS if window < queries] + [queries]
    pairs = []
    for window in windows:
        reuse = float(np.mean([each.reuse(window) for each in batches]))
        alone = window * lookups / float(popularity.distinct_rows(window * lookups))
        pairs.append((float(window), reuse / alone))
    return tuple(pairs)
