"""Che's characteristic time of an LRU cache: how many lookups a row stays after its last use."""

from __future__ import annotations

import numpy as np

from perfmodel.locality.popularity import Floats

_STEPS = 64
_PRECISION = 1e-10
_MOST_CLASSES = 4_096
NEVER_FRAC = 1e-200
"""Rows looked up less often than this share of the most popular one are never looked up."""


def characteristic_lookups(used: Floats, rate: Floats, capacity: Floats) -> Floats:
    """The T that solves `sum used (1 - exp(-rate T)) = capacity`, `[capacities]`.

    `used` `[classes]` is what all rows of a class take of the cache, in the unit of `capacity`
    `[capacities]`, `rate` `[classes]` the chance per lookup of one of its rows. 0 for an empty
    cache, infinite for one that holds every row that is ever looked up. Newton's method in log T,
    kept within a bracket.

    Source: Che, Tung and Wang 2002, Hierarchical Web caching systems; Fricker, Robert and Roberts
    2012 (arXiv 1202.3974) on why it is accurate.
    """
    asked = np.asarray(capacity, np.float64)
    used, rate = few_classes(used, rate)
    found = np.where(asked > 0, np.inf, 0.0)
    inside = (asked > 0) & (asked < used.sum() * (1.0 - 1e-12))
    if not inside.any():
        return found
    wanted = asked[inside]
    low = np.log(wanted / np.dot(used, rate))
    high = np.log(-np.log1p(-wanted / used.sum())) - np.log(rate.min())
    place = low.copy()
    for _ in range(_STEPS):
        time = np.exp(place)[:, None] * rate[None, :]
        gone = np.expm1(-time)
        filled = -(gone @ used)
        if np.all(np.abs(filled - wanted) <= _PRECISION * wanted):
            break
        slope = (time * (1.0 + gone)) @ used
        low, high = np.where(filled < wanted, place, low), np.where(filled < wanted, high, place)
        guess = place + np.log(wanted / filled) * filled / np.maximum(slope, 1e-300)
        within = (guess > low) & (guess < high)
        place = np.where(within, guess, 0.5 * (low + high))
    found[inside] = np.exp(place)
    return found


def few_classes(used: Floats, rate: Floats) -> tuple[Floats, Floats]:
    """The classes that are looked up; those of like rate together where there are too many."""
    active = (rate > NEVER_FRAC * rate.max(initial=0.0)) & (used > 0)
    used, rate = used[active], rate[active]
    if len(used) <= _MOST_CLASSES:
        return used, rate
    level = np.log(rate)
    width = np.ptp(level) / _MOST_CLASSES + 1e-300
    place = ((level - level.min()) / width).astype(np.int64)
    together = np.bincount(place, used).astype(np.float64)
    weight = np.bincount(place, used * rate)
    kept = together > 0
    return together[kept], weight[kept] / together[kept]
