"""Replacement policies: which rows a cache holds, in closed form and exactly.

LRU, LRU within sets, a static hot set, LFU, and W-TinyLFU. A plug-in adds one by the entry point
`perfmodel.cache_policies`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import Floats, Ints, Mask
from perfmodel.embedding.lru_residency import (
    LruSets,
    characteristic_lookups,
    lfu_distances,
    lru_distances,
    segmented_residency,
)
from perfmodel.embedding.popularity import touched_per_class
from perfmodel.errors import WorkloadError
from perfmodel.registry import Registry


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

    @property
    def mean_row_bytes(self) -> float:
        """Of all rows."""
        return float(self.used_bytes.sum() / self.rows.sum())

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

    def in_lru_sets(self, capacity_bytes: float, set_rows: float = float("inf")) -> LruSets:
        """In sets of so many places; in one where they do not fill a set."""
        place_bytes = self.mean_row_bytes
        places = capacity_bytes / place_bytes
        sets = max(places / set_rows, 1.0)
        return LruSets(self.used_bytes, self.rate, place_bytes, places / sets, sets)


class Policy(ABC):
    """Which rows stay: a model under independent lookups, and the same replayed exactly."""

    @abstractmethod
    def residency(self, classes: RowClasses, capacity_bytes: float) -> Floats:
        """The chance that a row of each class is in the cache in steady state, `[classes]`."""

    @abstractmethod
    def hits(self, rows: Ints, capacity_rows: int, step: Ints) -> Mask:
        """Which lookups of a stream find their row, from an empty cache on, `[lookups]`.

        `rows` are row numbers (of all tables together), `step` ascending numbers of what is looked
        up at once: what counts is what the cache holds when the step begins, and it is updated
        lookup by lookup.
        """

    def first_batch_misses(
        self, classes: RowClasses, capacity_bytes: float, lookups: float
    ) -> Floats:
        """Lookups of each class that miss among the first so many into an empty cache.

        Until the cache is full every row misses once; from then on as in steady state. Exact under
        Che's approximation for LRU.
        """
        filled = characteristic_lookups(
            classes.used_bytes, classes.rate, np.array([capacity_bytes])
        )[0]
        once = classes.touched_rows(min(lookups, filled))
        after = max(lookups - filled, 0.0)
        missed = 1.0 - self.residency(classes, capacity_bytes)
        return np.asarray(once + after * classes.rows * classes.rate * missed)


POLICIES: Registry[type[Policy]] = Registry("cache policy", group="perfmodel.cache_policies")


def poisson_above_frac(mean_count: Floats, count: float | Floats) -> Floats:
    """The chance that a Poisson variable is above `count`."""
    from scipy.special import gammainc

    return np.asarray(gammainc(np.floor(count) + 1.0, mean_count), np.float64)


@POLICIES.register("lru")
@dataclass(frozen=True)
class Lru(Policy):
    """Least recently used, fully associative: one set of `LruSets`."""

    def sets(self, classes: RowClasses, capacity_bytes: float) -> LruSets:
        return classes.in_lru_sets(capacity_bytes)

    def residency(self, classes: RowClasses, capacity_bytes: float) -> Floats:
        return self.sets(classes, capacity_bytes).residency

    def first_batch_misses(
        self, classes: RowClasses, capacity_bytes: float, lookups: float
    ) -> Floats:
        hit_frac = self.sets(classes, capacity_bytes).first_found(lookups)
        return lookups * classes.rows * classes.rate * (1.0 - hit_frac)

    def hits(self, rows: Ints, capacity_rows: int, step: Ints) -> Mask:
        return np.asarray(lru_distances(rows, step) < capacity_rows)


_MIXERS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
"""Shifts and multipliers. Source: Steele, Lea and Flood 2014, SplitMix."""


@POLICIES.register("set_associative")
@dataclass(frozen=True)
class SetAssociativeLru(Lru):
    """Least recently used of the `ways` places of a set (FBGEMM's row cache: 32; a GPU's L2: 16).

    See `LruSets`.
    """

    ways: int = 32

    def __post_init__(self) -> None:
        if self.ways < 1:
            raise WorkloadError(f"set_associative: {self.ways} ways")

    def sets(self, classes: RowClasses, capacity_bytes: float) -> LruSets:
        return classes.in_lru_sets(capacity_bytes, self.ways)

    def hits(self, rows: Ints, capacity_rows: int, step: Ints) -> Mask:
        """Sets are a hash of the row's number; places that fill no set widen the first ones."""
        sets = max(round(capacity_rows / self.ways), 1)
        place = _mixed(rows) % np.uint64(sets)
        order = np.argsort(place, kind="stable")
        steps = np.cumsum(np.diff(place[order], prepend=place[:1]) != 0)
        result = np.empty(len(rows), bool)
        inside = steps * (int(step[-1]) + 1) + step[order] if len(step) else step
        ways = capacity_rows // sets + (place < capacity_rows % sets)
        result[order] = lru_distances(rows[order], inside) < ways[order]
        return result


def _mixed(rows: Ints) -> NDArray[np.uint64]:
    """Row numbers as random as independent draws, the same for the same row."""
    state = rows.astype(np.uint64)
    for shift, multiplier in _MIXERS:
        state = (state ^ (state >> np.uint64(shift))) * np.uint64(multiplier)
    return np.asarray(state ^ (state >> np.uint64(31)))


@POLICIES.register("static")
@dataclass(frozen=True)
class StaticHotSet(Policy):
    """The rows with most lookups per row, as many as fit; nothing else enters.

    Popularity is known beforehand (a statistic of the data set). No policy that does not know the
    future finds more under independent lookups into rows of one size. In a replay, hot are the rows
    that `profile`, another stream, looks up most; without it, those of the stream itself.
    """

    profile: Ints | None = field(default=None, compare=False)

    def residency(self, classes: RowClasses, capacity_bytes: float) -> Floats:
        return classes.best_kept_frac(classes.rate, capacity_bytes)

    def first_batch_misses(
        self, classes: RowClasses, capacity_bytes: float, lookups: float
    ) -> Floats:
        """Hot rows miss once each, the others always."""
        kept = self.residency(classes, capacity_bytes)
        always = lookups * classes.rows * classes.rate
        return kept * classes.touched_rows(lookups) + (1.0 - kept) * always

    def hits(self, rows: Ints, capacity_rows: int, step: Ints) -> Mask:
        """Hot rows are there from the start."""
        seen, counts = np.unique(rows if self.profile is None else self.profile, return_counts=True)
        hot = seen[np.argsort(-counts, kind="stable")[:capacity_rows]]
        return np.isin(rows, hot)


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
            fits = (
                np.dot(classes.used_bytes, poisson_above_frac(expected, middle)) <= capacity_bytes
            )
            low, high = (low, middle) if fits else (middle + 1, high)
        above = poisson_above_frac(expected, low)
        tied = (poisson_above_frac(expected, low - 1) - above) if low else np.zeros_like(above)
        needed = np.dot(classes.used_bytes, tied)
        room = capacity_bytes - np.dot(classes.used_bytes, above)
        part = min(max(room, 0.0) / needed, 1.0) if needed > 0 else 0.0
        return np.asarray(np.minimum(above + part * tied, 1.0))

    def hits(self, rows: Ints, capacity_rows: int, step: Ints) -> Mask:
        return np.asarray(lfu_distances(rows, step) < capacity_rows)


_PERIODS = 13.0 / 6.0 + 4.0 / 9.0 * np.log(4.0)
_MAX_COUNTED = 15


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

    def hits(self, rows: Ints, capacity_rows: int, step: Ints) -> Mask:
        state = _State(self, capacity_rows)
        result = np.empty(len(rows), bool)
        ends = np.flatnonzero(np.diff(step, append=step[-1:] + 1)) + 1
        begin = 0
        for end in ends.tolist():
            batch = rows[begin:end].tolist()
            result[begin:end] = [row in state for row in batch]
            for row in batch:
                state.look_up(row)
            begin = end
        return result


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
        self.counts[row] = min(self.counts.get(row, 0) + 1, _MAX_COUNTED)
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
