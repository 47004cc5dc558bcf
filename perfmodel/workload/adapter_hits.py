"""What a cache of rows in a network adapter finds: closed forms, and trees that correct them.

Where queries share rows, the cache of an independent stream that finds as much stands in, and trees
that were fitted to exact replays (`benchmarks/nic_cache.py`) correct it: they know how such queries
are spread over a batch, and what small caches lose of them. Independent lookups, and policies other
than LRU, keep their closed form, which is exact to a few thousandths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.zipf import touched_rows
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.learned.forest import Forest, read_trees
from perfmodel.embedding.cache import TableAccess, shared_classes
from perfmodel.embedding.policies import POLICIES
from perfmodel.embedding.popularity import Popularity

Reuse = tuple[tuple[float, float], ...]
"""For windows of consecutive queries, their number and their lookups per distinct row over those of
independent lookups; empty: queries share nothing but popular rows."""


@dataclass(frozen=True, kw_only=True)
class NicTable(TableAccess):
    """One table as one batch looks it up, `pooling` lookups per bag.

    `together`: the rows of a bag always come together (a key brings them), else independently.
    """

    pooling: float = 1.0
    together: bool = False


@dataclass(frozen=True)
class NicLoad:
    """What one adapter's cache of `capacity_bytes` sees of a batch of `queries`; `policy` is a name
    of `perfmodel.embedding.POLICIES`."""

    tables: tuple[NicTable, ...]
    capacity_bytes: float
    queries: float
    policy: str = "lru"
    reuse: Reuse = ()


@dataclass(frozen=True, eq=False)
class NicHits:
    """Shares of a table's lookups, and of the bags all of whose lookups, that hit.

    `missed` is the table as what goes on sees it: fewer lookups, of less popular rows; None where
    nothing goes on. `residency`: the chance that a row of each class is in the cache.
    """

    table: NicTable
    hit_frac: float
    bags_hit_frac: float
    missed: NicTable | None
    residency: Floats

    def held_rows(self, lookups: float) -> float:
        """Rows of the table that the cache holds and so many lookups of it touch."""
        popularity = self.table.popularity
        touched = -popularity.rows * np.expm1(-popularity.chance * lookups)
        return float(np.dot(touched, self.residency))


def nic_hits(load: NicLoad, by: str = "learned", *, whole_bags: bool = False) -> list[NicHits]:
    """What a batch finds in the cache, per table: closed forms, corrected `by` trees (`learned`) or
    alone (`heuristic`).

    With `whole_bags` only bags that are found whole are served; all others go on whole.
    """
    residency = closed_form(load)
    if by == "learned":
        residency = _corrected(load, residency)
    _, owner = shared_classes(load.tables)
    found = []
    for number, table in enumerate(load.tables):
        kept, share = residency[owner == number], table.popularity.share
        hit = float(np.clip(np.dot(kept, share), 0.0, 1.0))
        bags = hit if table.together else hit ** max(table.pooling, 1.0)
        left = share * (1.0 - kept)
        missed: NicTable | None = None
        if whole_bags:
            hit = bags
            if bags < 1.0 - 1e-9:
                missed = _fewer(table, 1.0 - bags, share, table.pooling)
        elif (1.0 - hit) * table.lookups >= 1e-9 and left.sum() > 0:
            missed = _fewer(table, 1.0 - hit, left, table.pooling * (1.0 - hit))
        found.append(NicHits(table, hit, bags, missed, kept))
    return found


def _fewer(table: NicTable, frac: float, share: Floats, pooling: float) -> NicTable:
    """`table` with so much of its lookups, which go to its rows in proportion to `share`."""
    popularity = Popularity(table.popularity.rows, share / share.sum())
    return replace(table, popularity=popularity, lookups=table.lookups * frac, pooling=pooling)


_POINTS, _LAST_BATCHES = 160, 1e4  # of the curve; its end


@dataclass(frozen=True, eq=False)
class Footprint:
    """`lookups` in a row touch `distinct_bytes`; LRU caches of `capacity_bytes` find `hit_frac`.

    A cache misses what is new in as many lookups as fill it. Source: Denning and Schwartz 1972,
    Properties of the working-set model; Xiang et al. 2013, HOTL: the miss ratio is the slope of the
    footprint where it reaches the cache's size.
    """

    lookups: Floats
    distinct_bytes: Floats
    capacity_bytes: Floats
    hit_frac: Floats


def footprint(tables: Sequence[TableAccess], queries: float, reuse: Reuse = ()) -> Footprint:
    """Of lookups as varied as the tables' popularity says.

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
    distinct = np.maximum.accumulate(distinct)
    each = float(np.dot(classes.rows * classes.rate, classes.row_bytes))
    steps = np.diff(lookups)
    slope = np.minimum.accumulate(np.diff(distinct) / steps)
    reached = np.concatenate([[0.0], np.cumsum(slope * steps)]) + distinct[0]
    hits = 1.0 - np.clip(slope / each, 0.0, 1.0)
    return Footprint(lookups, distinct, (reached[1:] + reached[:-1]) / 2, hits)


BY_RECENCY = ("lru", "set_associative")  # policies for which it matters in which order queries come


def closed_form(load: NicLoad) -> Floats:
    """The chance `[classes]` that a row is held: that of the policy; with measured reuse, of the
    cache in which independent lookups would hit as often as the footprint says of these."""
    capacity = load.capacity_bytes
    if load.reuse and load.policy in BY_RECENCY:
        alone = footprint(load.tables, load.queries)
        shared = footprint(load.tables, load.queries, load.reuse)
        hit = np.interp(capacity, shared.capacity_bytes, shared.hit_frac)
        needed = float(np.interp(hit, alone.hit_frac, alone.capacity_bytes))
        # Beyond what the curve knows it grows with the capacity.
        least, most = alone.capacity_bytes[[0, -1]]
        capacity = capacity + needed - float(np.clip(capacity, least, most))
    classes, _ = shared_classes(load.tables)
    return POLICIES[load.policy]().residency(classes, capacity)


SCHEMA = "perfmodel.nic_cache/2"
BUNDLED = Path(__file__).with_name("adapter_hits.json")
FITTED_POLICY = "lru"
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
_LEAST, _LARGEST_LOGIT = 1e-9, 45.0


def _corrected(load: NicLoad, closed: Floats) -> Floats:
    """Every class's log odds to be found, shifted equally until all together hit as often as
    fitted; where queries are independent the closed form, which is exact to a few thousandths."""
    classes, _ = shared_classes(load.tables)
    mass = classes.rows * classes.rate
    mass = mass / mass.sum()
    hit = float(np.dot(closed, mass))
    if load.policy != FITTED_POLICY or not load.reuse or not 0.0 < hit < 1.0:
        return closed
    from scipy.optimize import brentq

    fitted = float(fitted_hit_frac(bundled(), features_of(load, hit)[None, :])[0])
    odds = logit(closed)

    def above(shift: float) -> float:
        return float(np.dot(_share(odds + shift), mass)) - fitted

    return _share(odds + brentq(above, -_LARGEST_LOGIT, _LARGEST_LOGIT, xtol=1e-13))


@cache
def bundled() -> Forest:
    return read_trees(BUNDLED, SCHEMA, FEATURES)


def features_of(load: NicLoad, hit_frac: float) -> Floats:
    """`[FEATURES]` of a load of which the closed form finds `hit_frac`."""
    lookups = sum(table.lookups for table in load.tables)
    curve = footprint(load.tables, load.queries, load.reuse)
    alone = footprint(load.tables, load.queries)
    alone_frac = float(np.interp(load.capacity_bytes, alone.capacity_bytes, alone.hit_frac))
    within = np.minimum(np.array(ROOMS), load.queries) * lookups / load.queries
    touched = np.interp(np.log(within), np.log(curve.lookups), np.log(curve.distinct_bytes))
    window, ratio = np.log(np.array(load.reuse or ((1.0, 1.0),))).T
    measured = np.interp(np.log(np.array(RATIOS)), window, ratio)
    found = logit(np.array([hit_frac, alone_frac]))
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
