"""A row enters only where it was looked up more often of late than the one that it displaces."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from perfmodel.errors import WorkloadError
from perfmodel.locality.characteristic import characteristic_lookups
from perfmodel.locality.policies import POLICIES, Bools, Policy, RowClasses
from perfmodel.locality.policies.lru import within
from perfmodel.locality.popularity import Floats
from perfmodel.locality.stack import Ints

_STEEPNESS, _PER_ALPHA, _STEEPNESS_RANGE = 3.6, 1.3, (1.5, 3.6)
_MOST_COUNTED = 15


@POLICIES.register("w_tinylfu")
@dataclass(frozen=True)
class WTinyLfu(Policy):
    """A small LRU window; what leaves it competes with the oldest of a segmented LRU by counts.

    `window_frac` of the places are the window's, `protected_frac` of the others are kept for rows
    that were found again. Counts (exact ones, not a sketch, at most 15) are halved every
    `sample_factor` lookups per place.

    Source: Einziger, Friedman and Manes 2017, TinyLFU (arXiv 1512.00727); sizes as in Caffeine.
    """

    window_frac: float = 0.01
    protected_frac: float = 0.8
    sample_factor: float = 10.0

    def __post_init__(self) -> None:
        if not (0.0 < self.window_frac < 1.0 and 0.0 <= self.protected_frac <= 1.0):
            raise WorkloadError("w_tinylfu: window and protected share must lie between 0 and 1")
        if not self.sample_factor > 0:
            raise WorkloadError(f"w_tinylfu: a sample of {self.sample_factor:g} lookups per place")

    def residency(self, classes: RowClasses, capacity_bytes: float) -> Floats:
        """`1 - exp(-(rate T)^s)` behind the window, with T such that the cache is full.

        s = 1 would be LRU, s without bound the static hot set. It falls with the skew of all rows
        together, as fitted to exact replays of Zipf lookups (exponents 0.4 to 1.4, 20,000 rows, 0.1
        to 50 % of them cached). The window is LRU of the rows that are not behind it. Shares
        `protected_frac` and samples `sample_factor` other than the defaults are not in the closed
        form: from 0 to 1, and from 2 to 50, they move hits by up to 0.025 in exact replays.
        """
        steepness = np.clip(_STEEPNESS - _PER_ALPHA * _skew(classes), *_STEEPNESS_RANGE)
        steep = (classes.rate / classes.rate.max()) ** steepness
        window_bytes = self.window_frac * capacity_bytes
        behind = _kept(classes.used_bytes, steep, capacity_bytes - window_bytes)
        outside = 1.0 - behind
        return behind + outside * _kept(classes.used_bytes * outside, classes.rate, window_bytes)

    def hits(self, rows: Ints, capacity_rows: int, step: Ints) -> Bools:
        state = _State(self, capacity_rows)
        found = np.empty(len(rows), bool)
        ends = np.flatnonzero(np.diff(step, append=step[-1:] + 1)) + 1
        begin = 0
        for end in ends.tolist():
            batch = rows[begin:end].tolist()
            found[begin:end] = [row in state for row in batch]
            for row in batch:
                state.look_up(row)
            begin = end
        return found


def _kept(used_bytes: Floats, rate: Floats, capacity_bytes: float) -> Floats:
    time = characteristic_lookups(used_bytes, rate, np.array([capacity_bytes]))
    return within(rate, time[0])


def _skew(classes: RowClasses) -> float:
    """The exponent of the Zipf distribution nearest to the rates: of log rate over log rank.

    Least squares, every row weighed by its lookups.
    """
    active = (classes.rate > 0) & (classes.rows > 0)
    falling, place = np.unique(np.round(-np.log(classes.rate[active]), 9), return_inverse=True)
    rows = np.bincount(place, classes.rows[active])
    rank = np.log(np.cumsum(rows) - 0.5 * rows + 0.5)
    weight = rows * np.exp(-falling)
    weight = weight / weight.sum()
    away = rank - np.dot(weight, rank)
    spread = np.dot(weight, away**2)
    return float(np.dot(weight, away * falling) / spread) if spread > 1e-12 else 0.0


class _State:
    """What the cache holds; each part oldest first."""

    def __init__(self, policy: WTinyLfu, places: int) -> None:
        self.window_places = min(max(1, round(policy.window_frac * places)), places)
        self.main_places = places - self.window_places
        self.protected_places = int(policy.protected_frac * self.main_places)
        self.sample = max(1, round(policy.sample_factor * places))
        self.counted = 0
        self.counts: dict[int, int] = {}
        self.window: OrderedDict[int, None] = OrderedDict()
        self.probation: OrderedDict[int, None] = OrderedDict()
        self.protected: OrderedDict[int, None] = OrderedDict()

    def __contains__(self, row: int) -> bool:
        return row in self.window or row in self.probation or row in self.protected

    def look_up(self, row: int) -> None:
        self._count(row)
        if row in self.window:
            self.window.move_to_end(row)
        elif row in self.protected:
            self.protected.move_to_end(row)
        elif row in self.probation:
            self._protect(row)
        else:
            self.window[row] = None
            if len(self.window) > self.window_places:
                self._admit(self.window.popitem(last=False)[0])

    def _count(self, row: int) -> None:
        self.counts[row] = min(self.counts.get(row, 0) + 1, _MOST_COUNTED)
        self.counted += 1
        if self.counted == self.sample:
            self.counted = 0
            self.counts = {key: count >> 1 for key, count in self.counts.items() if count > 1}

    def _protect(self, row: int) -> None:
        del self.probation[row]
        self.protected[row] = None
        if len(self.protected) > self.protected_places:
            self.probation[self.protected.popitem(last=False)[0]] = None

    def _admit(self, candidate: int) -> None:
        if len(self.probation) + len(self.protected) < self.main_places:
            self.probation[candidate] = None
            return
        part = self.probation or self.protected
        if not part:
            return
        victim = next(iter(part))
        if self.counts.get(candidate, 0) > self.counts.get(victim, 0):
            del part[victim]
            self.probation[candidate] = None
