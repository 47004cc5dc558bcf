"""Replacement policies: which rows a cache holds, in closed form and exactly.

LRU, LRU within sets, a static hot set, LFU; plug-ins: entry point `perfmodel.cache_policies`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import Floats, Ints, Mask
from perfmodel.embedding.lru_residency import (
    LruSets,
    characteristic_lookups,
    lfu_distances,
    lru_distances,
)
from perfmodel.embedding.popularity import touched_per_class
from perfmodel.errors import WorkloadError
from perfmodel.registry import Registry


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
        """What all rows of each class would take."""
        return self.rows * self.row_bytes

    @property
    def mean_row_bytes(self) -> float:
        """Of all rows."""
        return float(self.used_bytes.sum() / self.rows.sum())

    def touched_rows(self, lookups: float) -> Floats:
        """Expected distinct rows of each class among so many lookups, `[classes]`."""
        return touched_per_class(self.rows, self.rate, np.asarray(lookups))

    def best_kept_frac(self, value: Floats, capacity_bytes: float) -> Floats:
        """The part of each class that fits: of rows that are looked up, the highest by `value`."""
        order = np.argsort(-value, kind="stable")
        used = np.where(self.rate > 0, self.used_bytes, 0.0)[order]
        room = np.clip(capacity_bytes - (np.cumsum(used) - used), 0.0, used)
        kept = np.empty(len(order))
        kept[order] = np.divide(room, used, out=np.zeros_like(used), where=used > 0)
        return kept

    def in_lru_sets(self, capacity_bytes: float, set_rows: float = float("inf")) -> LruSets:
        """In sets of so many places; in one where they do not fill a set."""
        place_bytes = self.mean_row_bytes
        places = capacity_bytes / place_bytes
        sets = max(places / set_rows, 1.0)
        return LruSets(self.used_bytes, self.rate, place_bytes, places / sets, sets)


class Policy(ABC):
    """Which rows stay: a model under independent lookups, and the same replayed exactly."""

    @abstractmethod
    def residency(self, classes: RowClasses, capacity_bytes: float) -> Floats:
        """The chance that a row of each class is in the cache in steady state, `[classes]`."""

    @abstractmethod
    def hits(self, rows: Ints, capacity_rows: int, step: Ints) -> Mask:
        """Which lookups of a stream find their row, from an empty cache on, `[lookups]`.

        `rows` are row numbers (of all tables together), `step` ascending numbers of what is looked
        up at once: what counts is what the cache holds when the step begins, and it is updated
        lookup by lookup.
        """

    def first_batch_misses(
        self, classes: RowClasses, capacity_bytes: float, lookups: float
    ) -> Floats:
        """Lookups of each class that miss among the first so many into an empty cache.

        Until the cache is full every row misses once; from then on as in steady state. Exact under
        Che's approximation for LRU.
        """
        filled = characteristic_lookups(
            classes.used_bytes, classes.rate, np.array([capacity_bytes])
        )[0]
        once = classes.touched_rows(min(lookups, filled))
        after = max(lookups - filled, 0.0)
        missed = 1.0 - self.residency(classes, capacity_bytes)
        return np.asarray(once + after * classes.rows * classes.rate * missed)


POLICIES: Registry[type[Policy]] = Registry("cache policy", group="perfmodel.cache_policies")


def poisson_above_frac(mean_count: Floats, count: float | Floats) -> Floats:
    """The chance that a Poisson variable is above `count`."""
    from scipy.special import gammainc

    return np.asarray(gammainc(np.floor(count) + 1.0, mean_count), np.float64)


@POLICIES.register("lru")
@dataclass(frozen=True)
class Lru(Policy):
    """Least recently used, fully associative: one set of `LruSets`."""

    def sets(self, classes: RowClasses, capacity_bytes: float) -> LruSets:
        return classes.in_lru_sets(capacity_bytes)

    def residency(self, classes: RowClasses, capacity_bytes: float) -> Floats:
        return self.sets(classes, capacity_bytes).residency

    def first_batch_misses(
        self, classes: RowClasses, capacity_bytes: float, lookups: float
    ) -> Floats:
        hit_frac = self.sets(classes, capacity_bytes).first_found(lookups)
        return lookups * classes.rows * classes.rate * (1.0 - hit_frac)

    def hits(self, rows: Ints, capacity_rows: int, step: Ints) -> Mask:
        return np.asarray(lru_distances(rows, step) < capacity_rows)


_MIXERS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
"""Shifts and multipliers. Source: Steele, Lea and Flood 2014, SplitMix."""


@POLICIES.register("set_associative")
@dataclass(frozen=True)
class SetAssociativeLru(Lru):
    """Least recently used of the `ways` places of a set (FBGEMM's row cache: 32; a GPU's L2: 16).

    See `LruSets`.
    """

    ways: int = 32

    def __post_init__(self) -> None:
        if self.ways < 1:
            raise WorkloadError(f"set_associative: {self.ways} ways")

    def sets(self, classes: RowClasses, capacity_bytes: float) -> LruSets:
        return classes.in_lru_sets(capacity_bytes, self.ways)

    def hits(self, rows: Ints, capacity_rows: int, step: Ints) -> Mask:
        """Sets are a hash of the row's number; places that fill no set widen the first ones."""
        sets = max(round(capacity_rows / self.ways), 1)
        place = _mixed(rows) % np.uint64(sets)
        order = np.argsort(place, kind="stable")
        steps = np.cumsum(np.diff(place[order], prepend=place[:1]) != 0)
        result = np.empty(len(rows), bool)
        inside = steps * (int(step[-1]) + 1) + step[order] if len(step) else step
        ways = capacity_rows // sets + (place < capacity_rows % sets)
        result[order] = lru_distances(rows[order], inside) < ways[order]
        return result


def _mixed(rows: Ints) -> NDArray[np.uint64]:
    """Row numbers as random as independent draws, the same for the same row."""
    state = rows.astype(np.uint64)
    for shift, multiplier in _MIXERS:
        state = (state ^ (state >> np.uint64(shift))) * np.uint64(multiplier)
    return np.asarray(state ^ (state >> np.uint64(31)))


@POLICIES.register("static")
@dataclass(frozen=True)
class StaticHotSet(Policy):
    """The rows with most lookups per row, as many as fit; nothing else enters.

    Popularity is known beforehand (a statistic of the data set). No policy that does not know the
    future finds more under independent lookups into rows of one size. In a replay, hot are the rows
    that `profile`, another stream, looks up most; without it, those of the stream itself.
    """

    profile: Ints | None = field(default=None, compare=False)

    def residency(self, classes: RowClasses, capacity_bytes: float) -> Floats:
        return classes.best_kept_frac(classes.rate, capacity_bytes)

    def first_batch_misses(
        self, classes: RowClasses, capacity_bytes: float, lookups: float
    ) -> Floats:
        """Hot rows miss once each, the others always."""
        kept = self.residency(classes, capacity_bytes)
        always = lookups * classes.rows * classes.rate
        return kept * classes.touched_rows(lookups) + (1.0 - kept) * always

    def hits(self, rows: Ints, capacity_rows: int, step: Ints) -> Mask:
        """Hot rows are there from the start."""
        seen, counts = np.unique(rows if self.profile is None else self.profile, return_counts=True)
        hot = seen[np.argsort(-counts, kind="stable")[:capacity_rows]]
        return np.isin(rows, hot)


@POLICIES.register("lfu")
@dataclass(frozen=True)
class Lfu(Policy):
    """Least frequently used, by counts of all rows since the beginning; ties: the older one leaves.

    `history_lookups` is how many lookups were counted so far; after many the cache holds the most
    popular rows, as the static hot set does. A row enters where its count is at least the least of
    those in the cache (as in FBGEMM's LFU cache).
    """

    history_lookups: float = float("inf")

    def __post_init__(self) -> None:
        if not self.history_lookups > 0:
            raise WorkloadError(f"lfu: a history of {self.history_lookups} lookups")

    def residency(self, classes: RowClasses, capacity_bytes: float) -> Floats:
        """Rows whose Poisson count is above the least that stays, and part of those that have it.

        At equal counts the last of them is as late for popular rows as for others, so the same
        part of each class is left.
        """
        if np.isinf(self.history_lookups):
            return StaticHotSet().residency(classes, capacity_bytes)
        expected = classes.rate * self.history_lookups
        low, high = 0, int(expected.max() + 12.0 * np.sqrt(expected.max()) + 64.0)
        while low < high:
            middle = (low + high) // 2
            fits = (
                np.dot(classes.used_bytes, poisson_above_frac(expected, middle)) <= capacity_bytes
            )
            low, high = (low, middle) if fits else (middle + 1, high)
        above = poisson_above_frac(expected, low)
        tied = (poisson_above_frac(expected, low - 1) - above) if low else np.zeros_like(above)
        needed = np.dot(classes.used_bytes, tied)
        room = capacity_bytes - np.dot(classes.used_bytes, above)
        part = min(max(room, 0.0) / needed, 1.0) if needed > 0 else 0.0
        return np.asarray(np.minimum(above + part * tied, 1.0))

    def hits(self, rows: Ints, capacity_rows: int, step: Ints) -> Mask:
        return np.asarray(lfu_distances(rows, step) < capacity_rows)
