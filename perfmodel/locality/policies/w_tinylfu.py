"""A row enters only where it was looked up more often of late than the one that it displaces."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from perfmodel.errors import WorkloadError
from perfmodel.locality.policies import POLICIES, Bools, Policy, RowClasses
from perfmodel.locality.policies.lfu import Lfu
from perfmodel.locality.popularity import Floats
from perfmodel.locality.recency import LruSets
from perfmodel.locality.segments import segmented_residency
from perfmodel.locality.stack import Ints

_PERIODS = 13.0 / 6.0 + 4.0 / 9.0 * np.log(4.0)
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
        """Behind the window as under LFU with a history, or as in the segments without counts:
        whichever finds more. The window is LRU of the other rows.

        Counts that are halved every S lookups are worth Poisson counts of so many lookups as have
        their mean squared over their variance: s lookups after a halving (S + s)^2 / (s + S / 3),
        in the mean of a period 2.78 S. (25 to 30 lookups per place, with S of 10, had been seen to
        agree best with replays before this was derived.) That counts end at 15 is not in it.
        """
        if capacity_bytes <= 0:
            return np.zeros(len(classes.rate))
        used, rate, place_bytes = classes.used_bytes, classes.rate, classes.mean_row_bytes
        window_bytes = min(max(self.window_frac * capacity_bytes, place_bytes), capacity_bytes)
        main_bytes = capacity_bytes - window_bytes
        history = _PERIODS * self.sample_factor * capacity_bytes / place_bytes
        counted = Lfu(history).residency(classes, main_bytes)
        recent = segmented_residency(used, rate, main_bytes, self.protected_frac)
        behind = max(counted, recent, key=lambda kept: float(np.dot(classes.rows * rate, kept)))
        outside = used * (1.0 - behind)
        if not np.dot(outside, rate) > 0.0:
            return behind
        window = LruSets(outside, rate, place_bytes, window_bytes / place_bytes)
        return behind + (1.0 - behind) * window.residency

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
