"""What a cache of rows in a network adapter finds: closed forms, and trees that correct them.

The trees were fitted to exact replays (`benchmarks/nic_cache.py`). They know how queries that share
rows are spread over a batch, and what small caches lose of them. Independent lookups, and policies
other than LRU, keep their closed form, which is exact to a few thousandths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Protocol

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.registry import Registry
from perfmodel.base.zipf import touched_rows
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.learned.forest import Forest, read_trees
from perfmodel.embedding.cache import TableAccess, shared_classes
from perfmodel.embedding.policies import POLICIES
from perfmodel.embedding.popularity import Popularity
from perfmodel.embedding.reorder import ORDERS, Queries, reordered
from perfmodel.errors import WorkloadError


@dataclass(frozen=True, kw_only=True)
class NicTable(TableAccess):
    """One table as one batch looks it up, `pooling` lookups per bag.

    `together`: the rows of a bag always come together (a key brings them), else independently.
    """

    pooling: float = 1.0
    together: bool = False


@dataclass(frozen=True)
class NicLoad:
    """What one adapter's cache of `capacity_bytes` sees of a batch of `queries`.

    `policy` is a name of `perfmodel.embedding.POLICIES`. `reuse`: for windows of consecutive
    queries, their number and their lookups per distinct row over those of independent lookups
    (`measured_reuse`); empty: queries share nothing but popular rows. Raises `WorkloadError`.
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
    """How likely a row of each class is in the cache."""

    def residency(self, load: NicLoad) -> Floats:
        """Share of the lookups of each class (`shared_classes` of the tables) that hit."""
        ...


NIC_CACHES: Registry[NicCacheModel] = Registry(
    "NIC cache model", "perfmodel.nic_caches", "perfmodel.workload.adapter_hits"
)
"""`heuristic`: closed forms of locality; `learned`: corrected by what exact replays say."""


@dataclass(frozen=True, eq=False)
class NicHits:
    """Per table `[tables]`: shares of the lookups, and of the bags all of whose lookups, hit.

    `missed` are the tables as what goes on sees them: fewer lookups, of less popular rows; None
    where nothing goes on. `residency` is per table that of each class of its rows.
    """

    hit_frac: Floats
    bags_hit_frac: Floats
    missed: tuple[NicTable | None, ...]
    tables: tuple[NicTable, ...]
    residency: tuple[Floats, ...]

    @property
    def overall_hit_frac(self) -> float:
        """Of the lookups of all tables."""
        lookups = np.array([table.lookups for table in self.tables])
        return float(np.dot(self.hit_frac, lookups) / lookups.sum())

    def held_rows(self, number: int, lookups: float) -> float:
        """Rows of a table that the cache holds and so many lookups of it touch."""
        popularity = self.tables[number].popularity
        touched = -popularity.rows * np.expm1(-popularity.chance * lookups)
        return float(np.dot(touched, self.residency[number]))


def nic_hits(load: NicLoad, model: str = "learned") -> NicHits:
    """What a batch finds in the cache, by a model of `NIC_CACHES`; raises `PerfmodelError`."""
    residency = NIC_CACHES[model].residency(load)
    _, owner = shared_classes(load.tables)
    hits, bags, missed, held = [], [], [], []
    for number, table in enumerate(load.tables):
        kept, share = residency[owner == number], table.popularity.share
        hit = float(np.clip(np.dot(kept, share), 0.0, 1.0))
        held.append(kept)
        hits.append(hit)
        bags.append(hit if table.together else hit ** max(table.pooling, 1.0))
        missed.append(_beyond(table, share * (1.0 - kept), hit))
    return NicHits(np.array(hits), np.array(bags), tuple(missed), load.tables, tuple(held))


def _beyond(table: NicTable, share: Floats, hit: float) -> NicTable | None:
    """What misses, as a table of its own."""
    left = 1.0 - hit
    if left * table.lookups < 1e-9 or not share.sum() > 0:
        return None
    popularity = Popularity(table.popularity.rows, share / share.sum())
    lookups, pooling = table.lookups * left, table.pooling * left
    return replace(table, popularity=popularity, lookups=lookups, pooling=pooling)


def whole_bag_hits(hits: NicHits) -> NicHits:
    """The same where only bags that are found whole are served; all others go on whole."""
    missed = tuple(
        replace(table, lookups=table.lookups * (1.0 - bags)) if bags < 1.0 - 1e-9 else None
        for table, bags in zip(hits.tables, hits.bags_hit_frac.tolist(), strict=True)
    )
    return replace(hits, hit_frac=hits.bags_hit_frac, missed=missed)


_POINTS, _LAST_BATCHES = 160, 1e4
"""Of the curve; its end."""


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

    def equivalent_bytes(self, other: Footprint, capacity_bytes: float) -> float:
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
    tables: Sequence[TableAccess], queries: float, reuse: tuple[tuple[float, float], ...] = ()
) -> Footprint:
    """Of lookups as varied as the tables' popularity says; `reuse`: see `NicLoad`.

    Lookups that repeat others of their window count for nothing: so many fewer independent ones
    touch as many rows. Between one lookup, which repeats none, and measured windows that share goes
    on in the logarithm of the window; beyond the last it stays, as batches are independent.
    """
    classes, _ = shared_classes(tables)
    batch = sum(table.lookups for table in tables)
    lookups = np.geomspace(1.0, batch * _LAST_BATCHES, _POINTS)
    counted = lookups
    if reuse:
        window, ratio = np.array(reuse).T
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


class ClosedForm:
    """That of the policy; with measured reuse, of the cache in which independent lookups would hit
    as often as the footprint says of these."""

    def residency(self, load: NicLoad) -> Floats:
        capacity = load.capacity_bytes
        if load.reuse and load.policy in BY_RECENCY:
            alone = footprint(load.tables, load.queries)
            shared = footprint(load.tables, load.queries, load.reuse)
            capacity = alone.equivalent_bytes(shared, capacity)
        classes, _ = shared_classes(load.tables)
        return POLICIES[load.policy]().residency(classes, capacity)


NIC_CACHES.register("heuristic")(ClosedForm())

SCHEMA = "perfmodel.nic_cache/2"
BUNDLED = Path(__file__).with_name("adapter_hits.json")
FITTED_POLICIES = ("lru",)
ROOMS, RATIOS = (1, 16, 256), (4, 64, 1024)
"""Queries whose distinct bytes the capacity is divided by, and whose measured reuse is taken."""
FEATURES = (
    "hit_logit",
    "independent_logit",
    *(f"log_room_{queries}" for queries in ROOMS),
    *(f"log_reuse_{queries}" for queries in RATIOS),
    "log_queries",
    "log_query_lookups",
)
_C = coefficients("tiers.learned")
_LEAST, _LARGEST_LOGIT, _HALVINGS = 1e-9, 45.0, 60


class Learned:
    """Every class's log odds to be found, shifted equally until all together hit as often as
    fitted."""

    def residency(self, load: NicLoad) -> Floats:
        closed = ClosedForm().residency(load)
        classes, _ = shared_classes(load.tables)
        mass = classes.rows * classes.rate
        hit = float(np.dot(closed, mass) / mass.sum())
        if load.policy not in FITTED_POLICIES or not load.reuse or not 0.0 < hit < 1.0:
            return closed
        fitted = float(fitted_hit_frac(bundled(), features_of(load, hit)[None, :])[0])
        odds, low, high = logit(closed), -_LARGEST_LOGIT, _LARGEST_LOGIT
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            is_low = float(np.dot(_share(odds + middle), mass / mass.sum())) < fitted
            low, high = (middle, high) if is_low else (low, middle)
        return _share(odds + high)


NIC_CACHES.register("learned")(Learned())


@cache
def bundled() -> Forest:
    """The trees that come with the package."""
    return read_trees(BUNDLED, SCHEMA, FEATURES)


def features_of(load: NicLoad, hit_frac: float) -> Floats:
    """`[FEATURES]` of a load of which the closed form finds `hit_frac`."""
    lookups = sum(table.lookups for table in load.tables)
    curve = footprint(load.tables, load.queries, load.reuse)
    alone = footprint(load.tables, load.queries).hit_frac(load.capacity_bytes)
    within = np.minimum(np.array(ROOMS), load.queries) * lookups / load.queries
    touched = np.interp(np.log(within), np.log(curve.lookups), np.log(curve.distinct_bytes))
    window, ratio = np.log(np.array(load.reuse or ((1.0, 1.0),))).T
    measured = np.interp(np.log(np.array(RATIOS)), window, ratio)
    found = logit(np.array([hit_frac, alone]))
    sizes = np.log([load.queries, lookups / load.queries])
    return np.concatenate([found, np.log(load.capacity_bytes) - touched, measured, sizes])


def fitted_hit_frac(trees: Forest, features: Floats) -> Floats:
    """Share of the lookups that hit, of loads `[loads, features]`.

    What the trees add to part of the closed form's log odds never falls with the capacity, so a
    larger cache never finds less.
    """
    closed = features[:, FEATURES.index("hit_logit")]
    return _share(_C.closed_form_slope * closed + trees.predict(features))


def logit(chance: Floats) -> Floats:
    """Log odds of chances, kept off 0 and 1."""
    kept = np.clip(chance, _LEAST, 1.0 - _LEAST)
    return np.asarray(np.log(kept) - np.log1p(-kept))


def _share(odds: Floats) -> Floats:
    return np.asarray(1.0 / (1.0 + np.exp(-odds)))


AS_THEY_COME = "as_they_come"
WINDOWS = (1, 4, 16, 64, 256, 1024)
"""Consecutive queries in which reuse is measured (those that a batch has)."""


def in_order(batches: Sequence[Queries], order: str) -> tuple[list[Queries], float]:
    """Each batch in its `order`, as they come or one of `ORDERS`; pairs of lookups compared per
    batch. Raises `WorkloadError`."""
    if order == AS_THEY_COME:
        return list(batches), 0.0
    if order not in ORDERS:
        raise WorkloadError(
            f"order of queries {order!r}: expected one of {', '.join((AS_THEY_COME, *ORDERS))}"
        )
    ways = [reordered(each, order) for each in batches]
    ordered = [each.in_order(way.order) for each, way in zip(batches, ways, strict=True)]
    return ordered, float(np.mean([way.pairs for way in ways]))


def measured_reuse(
    batches: Sequence[Queries], popularity: Popularity
) -> tuple[tuple[float, float], ...]:
    """For `NicLoad.reuse`: of `batches` of equal size whose rows are as popular as stated.

    Lookups per distinct row within the windows that a batch has, over those of independent ones.
    """
    queries = len(batches[0])
    lookups = float(np.mean([len(each.rows) for each in batches])) / queries
    pairs = []
    for window in [*(each for each in WINDOWS if each < queries), queries]:
        reuse = float(np.mean([each.reuse(window) for each in batches]))
        alone = window * lookups / float(popularity.distinct_rows(window * lookups))
        pairs.append((float(window), reuse / alone))
    return tuple(pairs)
