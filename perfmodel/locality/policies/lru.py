"""The row that was looked up longest ago leaves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.locality.characteristic import NEVER_FRAC, characteristic_lookups
from perfmodel.locality.policies import POLICIES, Bools, Policy, RowClasses
from perfmodel.locality.popularity import Floats
from perfmodel.locality.stack import Ints, lru_distances


@POLICIES.register("lru")
@dataclass(frozen=True)
class Lru(Policy):
    """Least recently used, fully associative.

    Source: Che, Tung and Wang 2002: a row is there if it was looked up within the cache's
    characteristic time.
    """

    def residency(self, classes: RowClasses, capacity_bytes: float) -> Floats:
        time = characteristic_lookups(classes.used_bytes, classes.rate, np.array([capacity_bytes]))
        return within(classes.rate, time[0])

    def hits(self, rows: Ints, capacity_rows: int, step: Ints) -> Bools:
        return np.asarray(lru_distances(rows, step) < capacity_rows)


def within(rate: Floats, lookups: float) -> Floats:
    """The chance that a row was looked up in the last so many lookups; never, if it never is."""
    if np.isinf(lookups):
        return np.where(rate > NEVER_FRAC * rate.max(), 1.0, 0.0)
    return np.asarray(-np.expm1(-rate * lookups))
