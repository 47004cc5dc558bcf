"""The row that was looked up least often leaves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.errors import WorkloadError
from perfmodel.locality.policies import POLICIES, Bools, Policy, RowClasses
from perfmodel.locality.policies.static import StaticHotSet
from perfmodel.locality.popularity import Floats
from perfmodel.locality.stack import Ints, lfu_distances


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
            fits = np.dot(classes.used_bytes, _above(expected, middle)) <= capacity_bytes
            low, high = (low, middle) if fits else (middle + 1, high)
        above = _above(expected, low)
        tied = (_above(expected, low - 1) - above) if low else np.zeros_like(above)
        needed = np.dot(classes.used_bytes, tied)
        room = capacity_bytes - np.dot(classes.used_bytes, above)
        part = min(max(room, 0.0) / needed, 1.0) if needed > 0 else 0.0
        return np.asarray(np.minimum(above + part * tied, 1.0))

    def hits(self, rows: Ints, capacity_rows: int, step: Ints) -> Bools:
        return np.asarray(lfu_distances(rows, step) < capacity_rows)


def _above(expected: Floats, count: int) -> Floats:
    """The chance that a Poisson count is above `count`."""
    from scipy.special import gammainc

    return np.asarray(gammainc(count + 1.0, expected), np.float64)
