"""Replacement policies, one file each: which rows a cache holds, in closed form and exactly."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from perfmodel.arrays import Floats, Ints, Mask
from perfmodel.embedding.lru_residency import LruSets, characteristic_lookups
from perfmodel.embedding.popularity import touched_per_class
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

    def best_kept(self, worth: Floats, capacity_bytes: float) -> Floats:
        """The part of each class that fits: of rows that are looked up, those of most `worth`."""
        order = np.argsort(-worth, kind="stable")
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
        once = touched_each(classes, min(lookups, filled))
        after = max(lookups - filled, 0.0)
        missed = 1.0 - self.residency(classes, capacity_bytes)
        return np.asarray(once + after * classes.rows * classes.rate * missed)


POLICIES: Registry[type[Policy]] = Registry(
    "cache policy", group="perfmodel.cache_policies", home="perfmodel.embedding.policies"
)


def poisson_above(expected: Floats, count: float | Floats) -> Floats:
    """The chance that a Poisson variable is above `count`."""
    from scipy.special import gammainc

    return np.asarray(gammainc(np.floor(count) + 1.0, expected), np.float64)


def touched_each(classes: RowClasses, lookups: float) -> Floats:
    """Expected distinct rows of each class among so many lookups, `[classes]`."""
    return touched_per_class(classes.rows, classes.rate, np.asarray(lookups))
