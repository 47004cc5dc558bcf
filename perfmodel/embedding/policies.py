"""Replacement policies: the chance that a cache holds each row, in closed form.

Least recently used, and the most popular rows; plug-ins: entry point `perfmodel.cache_policies`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.registry import Registry
from perfmodel.base.zipf import touched_per_class


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
