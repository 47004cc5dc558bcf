"""LRU within sets of a few places each; a row's set is a hash of its number."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import WorkloadError
from perfmodel.locality.policies import POLICIES, Bools, Policy, RowClasses
from perfmodel.locality.popularity import Floats
from perfmodel.locality.stack import Ints, lru_distances

_MIXERS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
"""Shifts and multipliers. Source: Steele, Lea and Flood 2014, SplitMix."""


@POLICIES.register("set_associative")
@dataclass(frozen=True)
class SetAssociativeLru(Policy):
    """Least recently used of the `ways` places of a set (FBGEMM's row cache: 32; a GPU's L2: 16).

    See `LruSets`.
    """

    ways: int = 32

    def __post_init__(self) -> None:
        if self.ways < 1:
            raise WorkloadError(f"set_associative: {self.ways} ways")

    def residency(self, classes: RowClasses, capacity_bytes: float) -> Floats:
        return classes.in_lru_sets(capacity_bytes, self.ways).residency

    def first_batch_misses(
        self, classes: RowClasses, capacity_bytes: float, lookups: float
    ) -> Floats:
        found = classes.in_lru_sets(capacity_bytes, self.ways).first_found(lookups)
        return lookups * classes.rows * classes.rate * (1.0 - found)

    def hits(self, rows: Ints, capacity_rows: int, step: Ints) -> Bools:
        """Sets are a hash of the row's number; places that fill no set widen the first ones."""
        sets = max(round(capacity_rows / self.ways), 1)
        place = _mixed(rows) % np.uint64(sets)
        order = np.argsort(place, kind="stable")
        steps = np.cumsum(np.diff(place[order], prepend=place[:1]) != 0)
        found = np.empty(len(rows), bool)
        inside = steps * (int(step[-1]) + 1) + step[order] if len(step) else step
        ways = capacity_rows // sets + (place < capacity_rows % sets)
        found[order] = lru_distances(rows[order], inside) < ways[order]
        return found


def _mixed(rows: Ints) -> NDArray[np.uint64]:
    """Row numbers as random as independent draws, the same for the same row."""
    state = rows.astype(np.uint64)
    for shift, multiplier in _MIXERS:
        state = (state ^ (state >> np.uint64(shift))) * np.uint64(multiplier)
    return np.asarray(state ^ (state >> np.uint64(31)))
