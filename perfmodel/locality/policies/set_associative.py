"""LRU within sets of a few places each; a row's set is a hash of its number."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import WorkloadError
from perfmodel.locality.characteristic import characteristic_lookups
from perfmodel.locality.policies import POLICIES, Bools, Policy, RowClasses, touched_each
from perfmodel.locality.policies.lru import within
from perfmodel.locality.popularity import Floats
from perfmodel.locality.stack import Ints, lru_distances

_NODES = 16
_MIXERS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
"""Shifts and multipliers. Source: Steele, Lea and Flood 2014, SplitMix."""


@POLICIES.register("set_associative")
@dataclass(frozen=True)
class SetAssociativeLru(Policy):
    """Least recently used of the `ways` places of a set (FBGEMM's row cache: 32; a GPU's L2: 16).

    Between two lookups of a row, the others of its set that are looked up are a Poisson number
    with mean D(t) / sets, and the row is lost once they are `ways`. So the cache acts like fully
    associative ones of sets x G rows with G drawn from a gamma distribution of mean `ways`. With
    few sets the number is binomial: the variance of G is less by 1 - 1 / sets.

    Source: Smith 1978, A comparative study of set associative memory mapping algorithms (sets as
    random samples of the stack), joined with Che's approximation.
    """

    ways: int = 32

    def __post_init__(self) -> None:
        if self.ways < 1:
            raise WorkloadError(f"set_associative: {self.ways} ways")

    def residency(self, classes: RowClasses, capacity_bytes: float) -> Floats:
        times, weights = self._times(classes, capacity_bytes)
        each = [within(classes.rate, time) for time in times]
        return np.asarray(weights @ np.stack(each))

    def first_batch_misses(
        self, classes: RowClasses, capacity_bytes: float, lookups: float
    ) -> Floats:
        times, weights = self._times(classes, capacity_bytes)
        always = classes.rows * classes.rate
        each = [
            touched_each(classes, min(lookups, time))
            + max(lookups - time, 0.0) * always * (1.0 - within(classes.rate, time))
            for time in times
        ]
        return np.asarray(weights @ np.stack(each))

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

    def _times(self, classes: RowClasses, capacity_bytes: float) -> tuple[Floats, Floats]:
        place_bytes = classes.used_bytes.sum() / classes.rows.sum()
        sets = max(capacity_bytes / (self.ways * place_bytes), 1.0)
        varied = 1.0 - 1.0 / sets
        sizes, weights = _gamma_nodes(round(self.ways / max(varied, 1e-6), 3))
        capacity = capacity_bytes * sizes
        return characteristic_lookups(classes.used_bytes, classes.rate, capacity), weights


def _mixed(rows: Ints) -> NDArray[np.uint64]:
    """Row numbers as random as independent draws, the same for the same row."""
    state = rows.astype(np.uint64)
    for shift, multiplier in _MIXERS:
        state = (state ^ (state >> np.uint64(shift))) * np.uint64(multiplier)
    return np.asarray(state ^ (state >> np.uint64(31)))


@lru_cache(maxsize=256)
def _gamma_nodes(shape: float) -> tuple[Floats, Floats]:
    """Points and weights of Gauss quadrature under a gamma distribution of mean 1.

    Source: Golub and Welsch 1969, by the recurrence of generalised Laguerre polynomials.
    """
    degree = np.arange(_NODES, dtype=np.float64)
    diagonal = 2.0 * degree + shape
    beside = np.sqrt(degree[1:] * (degree[1:] + shape - 1.0))
    points, vectors = np.linalg.eigh(np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1))
    return np.maximum(points / shape, 0.0), vectors[0] ** 2
