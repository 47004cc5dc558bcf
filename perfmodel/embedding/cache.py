"""One cache for the rows of several tables, by replacement policies in closed form: least recently
used, and the most popular rows (plug-ins: entry point `perfmodel.cache_policies`); and the rows
worth keeping close by within a budget.

Lookups, of one sample too, are independent. Where rows that are popular come together, more samples
have only hot rows than is said here, at the same share of lookups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from perfmodel.base.arrays import Floats, Ints
from perfmodel.base.registry import Registry
from perfmodel.embedding.popularity import Popularity, touched_class_rows
from perfmodel.errors import WorkloadError


@dataclass(frozen=True, eq=False)
class RowClasses:
    """Rows of all tables that share a cache, in classes of equally popular rows.

    All `[classes]`: `rows` of the class, `rate` the chance that one of the cache's lookups goes to
    a given one of them, `row_bytes` what each takes of the cache.
    """

    rows: Floats
    rate: Floats
    row_bytes: Floats

    @property
    def used_bytes(self) -> Floats:
        return self.rows * self.row_bytes

    def best_kept_frac(self, value: Floats, capacity_bytes: float) -> Floats:
        """The part of each class that fits: of rows that are looked up, the highest by `value`."""
        order = np.argsort(-value, kind="stable")
        used = np.where(self.rate > 0, self.used_bytes, 0.0)[order]
        room = np.clip(capacity_bytes - (np.cumsum(used) - used), 0.0, used)
        kept = np.empty(len(order))
        kept[order] = np.divide(room, used, out=np.zeros_like(used), where=used > 0)
        return kept


Policy: TypeAlias = Callable[[RowClasses, float], Floats]
"""Of classes and a capacity in bytes, the chance that a row of each class is in the cache in steady
state, lookups being independent, `[classes]`."""
POLICIES: Registry[Policy] = Registry("cache policy", group="perfmodel.cache_policies")

_STEPS = 64
_PRECISION = 1e-10
NEVER_FRAC = 1e-200
"""Rows looked up less often than this share of the most popular one are never looked up."""


@POLICIES.register("lru")
def lru(classes: RowClasses, capacity_bytes: float) -> Floats:
    """Least recently used, fully associative, by Che's approximation."""
    lookups = characteristic_lookups(classes.used_bytes, classes.rate, capacity_bytes)
    if np.isinf(lookups):
        return np.where(classes.rate > NEVER_FRAC * classes.rate.max(), 1.0, 0.0)
    return np.asarray(-np.expm1(-classes.rate * lookups))


@POLICIES.register("static", "lfu")
def most_popular(classes: RowClasses, capacity_bytes: float) -> Floats:
    """The rows with most lookups per row, as many as fit: known beforehand (`static`), or what
    counts of all rows since the beginning come to (`lfu`)."""
    return classes.best_kept_frac(classes.rate, capacity_bytes)


def characteristic_lookups(used: Floats, rate: Floats, capacity: float) -> float:
    """The T that solves `sum used (1 - exp(-rate T)) = capacity`.

    `used` `[classes]` is what all rows of a class take of the cache, in the unit of `capacity`,
    `rate` `[classes]` the chance per lookup of one of its rows. 0 for an empty cache, infinite for
    one that holds every row that is ever looked up. Newton's method in log T, kept in a bracket.

    Source: Che, Tung and Wang 2002, Hierarchical Web caching systems; Fricker, Robert and Roberts
    2012 (arXiv 1202.3974) on why it is accurate.
    """
    active = (rate > NEVER_FRAC * rate.max(initial=0.0)) & (used > 0)
    used, rate = used[active], rate[active]
    if capacity <= 0:
        return 0.0
    if capacity >= used.sum() * (1.0 - 1e-12):
        return np.inf
    place = low = float(np.log(capacity / np.dot(used, rate)))
    high = float(np.log(-np.log1p(-capacity / used.sum())) - np.log(rate.min()))
    for _ in range(_STEPS):
        time = np.exp(place) * rate
        gone = np.expm1(-time)
        filled = -float(gone @ used)
        if abs(filled - capacity) <= _PRECISION * capacity:
            break
        slope = float((time * (1.0 + gone)) @ used)
        low, high = (place, high) if filled < capacity else (low, place)
        guess = place + np.log(capacity / filled) * filled / max(slope, 1e-300)
        place = float(guess) if low < guess < high else 0.5 * (low + high)
    return float(np.exp(place))


@dataclass(frozen=True, kw_only=True)
class TableAccess:
    """How one batch looks up one table: so many `lookups` (repeats counted) of rows of `row_bytes`.

    `row_bytes` is what a row takes of the cache: in a GPU's L2 whole sectors, in a software cache
    the slot.
    """

    popularity: Popularity
    lookups: float
    row_bytes: float

    def __post_init__(self) -> None:
        if not (0 < self.lookups < np.inf and 0 < self.row_bytes < np.inf):
            raise WorkloadError(f"a table: {self.lookups:g} lookups of {self.row_bytes:g} bytes")


@dataclass(frozen=True, eq=False, kw_only=True)
class CacheUse:
    """What one batch finds in a cache, per table `[tables]`.

    `hit_frac` is the share of the table's lookups that find their row. `distinct_rows` are those
    of the batch, `fetched_rows` those of them that are not there when the batch begins.
    `cached_rows` are what the cache holds of the table.
    """

    lookups: Floats
    row_bytes: Floats
    hit_frac: Floats
    distinct_rows: Floats
    fetched_rows: Floats
    cached_rows: Floats

    @property
    def overall_hit_frac(self) -> float:
        """Share of all lookups, of all tables, that find their row."""
        return float(np.average(self.hit_frac, weights=self.lookups))


def steady_use(
    tables: Sequence[TableAccess], capacity_bytes: float, policy: str = "lru"
) -> CacheUse:
    """What a batch finds after many like it, in a cache that all `tables` share.

    `policy` is a name of `perfmodel.embedding.POLICIES`. Lookups are independent, and lookups of
    different tables mix evenly. Raises `WorkloadError` where there is no table.
    """
    if not capacity_bytes >= 0:
        raise WorkloadError(f"a cache of {capacity_bytes:g} bytes")
    classes, owner = shared_classes(tables)
    kept = POLICIES[policy](classes, capacity_bytes)
    total = sum(table.lookups for table in tables)
    touched = touched_class_rows(classes.rows, classes.rate, np.asarray(total))
    about = _about(tables)
    hits, distinct, fetched, cached = (
        np.bincount(owner, of_class, len(tables)).astype(np.float64)
        for of_class in (
            total * classes.rows * classes.rate * kept,
            touched,
            touched * (1.0 - kept),
            kept * classes.rows,
        )
    )
    return CacheUse(
        **about,
        hit_frac=np.clip(hits / about["lookups"], 0.0, 1.0),
        distinct_rows=distinct,
        fetched_rows=fetched,
        cached_rows=cached,
    )


def _about(tables: Sequence[TableAccess]) -> dict[str, Floats]:
    return {
        "lookups": np.array([table.lookups for table in tables], np.float64),
        "row_bytes": np.array([table.row_bytes for table in tables], np.float64),
    }


def shared_classes(tables: Sequence[TableAccess]) -> tuple[RowClasses, Ints]:
    """Classes of all tables one after the other, and the number of each class's table."""
    if not tables:
        raise WorkloadError("a cache without tables")
    total = sum(table.lookups for table in tables)
    sizes = [len(table.popularity.rows) for table in tables]
    return RowClasses(
        rows=np.concatenate([table.popularity.rows for table in tables]),
        rate=np.concatenate([t.popularity.chance * (t.lookups / total) for t in tables]),
        row_bytes=np.repeat([table.row_bytes for table in tables], sizes),
    ), np.repeat(np.arange(len(tables)), sizes)


@dataclass(frozen=True, eq=False, kw_only=True)
class HotSet:
    """Hot rows per table, `[tables]`, and what share `hot_frac` of the table's lookups they get.

    `lookups` are those of one sample, `row_bytes` what a row takes of the budget.
    """

    lookups: Floats
    row_bytes: Floats
    rows: Floats
    hot_frac: Floats

    @property
    def used_bytes(self) -> float:
        return float(np.dot(self.rows, self.row_bytes))

    @property
    def overall_hot_frac(self) -> float:
        """Share of all lookups that go to hot rows."""
        return float(np.average(self.hot_frac, weights=self.lookups))

    @property
    def popular_frac(self) -> float:
        """Share of the samples all of whose rows are hot.

        Source: FAE (Adnan et al., VLDB 2022): an input is hot only if all its rows are.
        """
        with np.errstate(divide="ignore"):
            return float(np.exp(np.dot(self.lookups, np.log(self.hot_frac))))


def mixed_hot_frac(hot_frac: Floats, popular_frac: float) -> Floats:
    """Share of the lookups of samples that are not popular that go to hot rows, `[tables]`.

    `hot_frac` `[tables]` is that of all samples, of which `popular_frac` look up nothing else: at
    least as many of any table's lookups are hot.
    """
    if popular_frac >= 1.0:
        return np.ones_like(hot_frac)
    return np.clip((hot_frac - popular_frac) / (1.0 - popular_frac), 0.0, 1.0)


def hot_set(
    tables: Sequence[TableAccess], budget_bytes: float, *, sampled: float = np.inf
) -> HotSet:
    """The hot rows of `tables`, whose lookups are those of one sample, that `budget_bytes` hold.

    Of all tables together those with most lookups per byte. They are known beforehand, or by their
    counts in `sampled` samples: a row is looked up so often by chance, a Poisson variable, and part
    of the rows at the least count that still fits are taken.

    Raises `WorkloadError` for a budget or a sample that cannot be.
    """
    if not budget_bytes >= 0:
        raise WorkloadError(f"hot rows: a budget of {budget_bytes:g} bytes")
    if not sampled > 0:
        raise WorkloadError(f"hot rows: learned on {sampled:g} samples")
    classes, owner = shared_classes(tables)
    if np.isinf(sampled):
        kept = classes.best_kept_frac(classes.rate / classes.row_bytes, budget_bytes)
    else:
        expected = classes.rate * sampled * sum(table.lookups for table in tables)
        # classes of equal tables are counted once
        kinds, kind = np.unique((expected, classes.row_bytes), axis=1, return_inverse=True)
        used = np.bincount(kind.ravel(), classes.used_bytes).astype(np.float64)
        kept = kept_by_counts(kinds[0], kinds[1], used, budget_bytes)[kind.ravel()]
    share = np.concatenate([table.popularity.share for table in tables])
    rows, hot = (
        np.bincount(owner, kept * each, len(tables)).astype(np.float64)
        for each in (classes.rows, share)
    )
    return HotSet(**_about(tables), rows=rows, hot_frac=np.clip(hot, 0.0, 1.0))


def split_hot(
    popularity: Popularity, hot_rows: float
) -> tuple[Popularity | None, Popularity | None]:
    """The `hot_rows` most popular rows, and all others, as tables; None without lookups."""
    hot = popularity.held_frac(0.0, hot_rows)

    def part(frac: Floats) -> Popularity | None:
        return popularity.part(frac) if np.dot(popularity.share, frac) > 0 else None

    return part(hot), part(1.0 - hot)


_HALVINGS = 100
_SAME_FRAC = 1e-12  # counts per byte of rows of several sizes are one, where they differ by no more


def kept_by_counts(expected: Floats, size: Floats, used: Floats, capacity: float) -> Floats:
    """The chance `[classes]` that a row's count over its `size` is above the least that fits, and a
    part of those at it; counts are Poisson variables of so many `expected`.

    `used` is what all rows of a class take of `capacity`. Halves what lies between two counts; only
    classes whose chance differs between the two are computed again.
    """
    sizes, low, many = np.unique(size), 0.0, _poisson_above(expected, 0.0)
    if np.dot(used, many) <= capacity:
        return many
    high = float(np.max((expected + 12.0 * np.sqrt(expected) + 64.0) / size))
    few = _poisson_above(expected, high * size)
    for _ in range(_HALVINGS):
        count = np.floor(low * sizes)
        between, following = np.floor(high * sizes) - count, (count + 1.0) / sizes
        if between.max() <= 1.0 and np.ptp(following[between > 0]) <= _SAME_FRAC * high:
            break
        middle, chance, open_ = 0.5 * (low + high), many.copy(), np.flatnonzero(many != few)
        chance[open_] = _poisson_above(expected[open_], middle * size[open_])
        if np.dot(used, chance) <= capacity:
            high, few = middle, chance
        else:
            low, many = middle, chance
    needed = float(np.dot(used, many - few))
    part = min((capacity - float(np.dot(used, few))) / needed, 1.0) if needed > 0 else 0.0
    return np.asarray(few + part * (many - few))


def _poisson_above(mean_count: Floats, count: Floats | float) -> Floats:
    """The chance that a Poisson variable is above `count`."""
    from scipy.special import gammainc

    return np.asarray(gammainc(np.floor(count) + 1.0, mean_count), np.float64)
