"""The row that was looked up longest ago leaves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.locality.policies import POLICIES, Bools, Policy, RowClasses
from perfmodel.locality.popularity import Floats
from perfmodel.locality.stack import Ints, lru_distances


@POLICIES.register("lru")
@dataclass(frozen=True)
class Lru(Policy):
    """Least recently used, fully associative: one set of `LruSets`."""

    def residency(self, classes: RowClasses, capacity_bytes: float) -> Floats:
        return classes.in_lru_sets(capacity_bytes).residency

    def first_batch_misses(
        self, classes: RowClasses, capacity_bytes: float, lookups: float
    ) -> Floats:
        found = classes.in_lru_sets(capacity_bytes).first_found(lookups)
        return lookups * classes.rows * classes.rate * (1.0 - found)

    def hits(self, rows: Ints, capacity_rows: int, step: Ints) -> Bools:
        return np.asarray(lru_distances(rows, step) < capacity_rows)
