"""A segmented LRU cache: rows that were found again are protected from those that were not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from perfmodel.locality.characteristic import NEVER_FRAC, few_classes
from perfmodel.locality.popularity import Floats

_LONGEST, _SHORTEST, _PRECISION = 60.0, 1e-9, 1e-9


def segmented_residency(
    used: Floats, rate: Floats, capacity: float, protected_frac: float
) -> Floats:
    """The chance that a row is in one of two LRU segments, `[classes]`.

    `used` `[classes]` is what all rows of a class take of `capacity`, `rate` `[classes]` the chance
    per lookup of one of its rows. A row enters the first segment, stays there for `new` lookups,
    and if it is looked up meanwhile moves to the second, which takes `protected_frac` of the
    capacity. From there it falls back into the first after `kept` lookups without one. Both times
    are such that the segments are full.

    Source: Karedla, Love and Wherry 1994, Caching strategies to improve disk system performance;
    times as Che's, for lists that feed one another as in Garetto, Leonardi and Martina 2016, A
    unified approach to the performance analysis of caching systems.
    """
    often = rate > NEVER_FRAC * rate.max(initial=0.0)
    if not 0.0 < capacity < used[often].sum():
        return np.where(often & (capacity > 0.0), 1.0, 0.0)
    few_used, few_rate = few_classes(used, rate)
    shortest = float(np.log(_SHORTEST * capacity / np.dot(few_used, few_rate)))
    longest = float(np.log(_LONGEST / few_rate.min()))

    def kept(new: float) -> float:
        def overfull(kept: float) -> float:
            held = _found(few_rate, new, kept) * -np.expm1(-few_rate * np.exp(kept))
            return float(np.dot(few_used, held)) - protected_frac * capacity

        return _root(overfull, shortest, longest)

    def surplus(new: float) -> float:
        return float(np.dot(few_used, _found(few_rate, new, kept(new)))) - capacity

    new = _root(surplus, shortest, longest)
    return np.where(often, _found(rate, new, kept(new)), 0.0)


def _root(rising: Callable[[float], float], low: float, high: float) -> float:
    """Where it crosses 0; `low` if it is above from there on."""
    from scipy.optimize import brentq

    return low if rising(low) >= 0.0 else float(brentq(rising, low, high, xtol=_PRECISION))


def _found(rate: Floats, new: float, kept: float) -> Floats:
    """Share of a row's lookups that find it, by the logarithms of both times."""
    once = -np.expm1(-rate * np.exp(new))
    lost = np.exp(-rate * (np.exp(new) + np.exp(kept)))
    return np.asarray(once / np.maximum(once + lost, 1e-300))
