"""How long rows stay in LRU caches: Che's characteristic time, sets of a few places; and
exactly, by the stack distances of an index stream.

By stack distances, a row is found by a cache of `c` rows if its distance is below `c`, for every
size at once: sorts and sums over whole columns, n log n for n lookups.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import Floats, Ints

NEVER = np.iinfo(np.int64).max
"""Distance of a row that was not looked up before: no cache holds it."""


def lru_distances(rows: Ints, step: Ints) -> Ints:
    """Rows looked up since the last lookup of the same row, at the beginning of each step.

    `rows` `[lookups]` are row numbers, `step` `[lookups]` ascending numbers of the batch (or, to
    work lookup by lookup, of the lookup). All lookups of one row within a step have the distance
    of the first.

    Source: Mattson et al. 1970, Evaluation techniques for storage hierarchies. A lookup j counts
    if it is the first of its row since the one before t, that is if j's predecessor is not later.
    """
    before, _ = predecessors(rows)
    earlier = earlier_not_larger(before, np.zeros_like(before))
    distance = earlier - (before + 1) - earlier_not_larger(before, step)
    return _as_step_begins(np.where(before < 0, NEVER, distance), before, step)


def lfu_distances(rows: Ints, step: Ints) -> Ints:
    """Rows looked up more often so far, or as often and later, at the beginning of each step.

    Arguments as in `lru_distances`. Counts are those of the whole stream and of all rows (perfect
    LFU); a row enters the cache where its count is at least the least of those in it.
    """
    before, nth = predecessors(rows)
    time = np.arange(len(rows))
    begin = np.searchsorted(step, step, side="left")
    order = np.lexsort((time, nth))
    group = np.cumsum(_changes(nth[order]), dtype=np.int64)
    smaller = _unordered(earlier_not_larger(before[order], group), order)
    inside = np.cumsum(_changes(nth[order]) | _changes(step[order]), dtype=np.int64)
    smaller -= _unordered(earlier_not_larger(before[order], inside), order)
    reached = nth[order] * len(rows) + order
    since = np.searchsorted(reached, (nth - 1) * len(rows) + begin, side="left")
    since -= np.searchsorted(reached, (nth - 1) * len(rows) + before, side="right")
    distance = np.where(before < 0, NEVER, smaller + since)
    return _as_step_begins(distance, before, step)


def predecessors(rows: Ints) -> tuple[Ints, Ints]:
    """Where each row was looked up last (-1: never), and how often before; both `[lookups]`."""
    order = np.argsort(rows, kind="stable")
    same = ~_changes(rows[order])
    before = np.full(len(rows), -1, np.int64)
    before[order[1:]] = np.where(same[1:], order[:-1], -1)
    place = np.arange(len(rows))
    first = np.maximum.accumulate(np.where(same, 0, place)) if len(rows) else place
    return before, _unordered(place - first, order)


def earlier_not_larger(values: Ints, group: Ints) -> Ints:
    """For each place, how many earlier places of its group have a value not above its own.

    `values` `[n]`; `group` `[n]` ascending. The places in the order of their values are split by
    one bit of the place after the other, the highest first: at each bit, those of the lower half
    that stand before one of the upper half are counted.
    """
    size = len(values)
    order = np.lexsort((np.arange(size), values, -group)).astype(np.int64)
    counts = np.zeros(size, np.int64)
    for bit in range(max(size - 1, 0).bit_length() - 1, -1, -1):
        half = 1 << bit
        upper = (order >> bit) & 1
        begin = (order >> (bit + 1)) << (bit + 1)
        lower_before = np.cumsum(1 - upper) - (1 - upper) - (begin >> 1)
        is_upper = upper == 1
        counts[order[is_upper]] += lower_before[is_upper]
        place = np.where(is_upper, np.arange(size) - lower_before + half, begin + lower_before)
        reordered = np.empty_like(order)
        reordered[place] = order
        order = reordered
    return counts


def _as_step_begins(distance: Ints, before: Ints, step: Ints) -> Ints:
    """Repeats within a step take the distance of their row's first lookup in it."""
    repeats = (before >= 0) & (step[np.maximum(before, 0)] == step)
    first = np.where(repeats, before, np.arange(len(before)))
    while True:
        further = first[first]
        if np.array_equal(further, first):
            return np.asarray(distance[first])
        first = further


def _changes(values: Ints) -> NDArray[np.bool_]:
    return np.append(True, values[1:] != values[:-1])[: len(values)]


def _unordered(values: Ints, order: Ints) -> Ints:
    result = np.empty_like(values)
    result[order] = values
    return result


_STEPS = 64
_PRECISION = 1e-10
_MAX_CLASSES = 4_096
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
    result = np.where(asked > 0, np.inf, 0.0)
    inside = (asked > 0) & (asked < used.sum() * (1.0 - 1e-12))
    if not inside.any():
        return result
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
    result[inside] = np.exp(place)
    return result


def few_classes(used: Floats, rate: Floats) -> tuple[Floats, Floats]:
    """The classes that are looked up; those of like rate together where there are too many."""
    active = (rate > NEVER_FRAC * rate.max(initial=0.0)) & (used > 0)
    used, rate = used[active], rate[active]
    if len(used) <= _MAX_CLASSES:
        return used, rate
    level = np.log(rate)
    width = np.ptp(level) / _MAX_CLASSES + 1e-300
    place = ((level - level.min()) / width).astype(np.int64)
    together = np.bincount(place, used).astype(np.float64)
    weight = np.bincount(place, used * rate)
    kept = together > 0
    return together[kept], weight[kept] / together[kept]


_STEP, _HALVES = 0.4, (4, 128)
"""Distance of two gaps by logarithm; half of how many there are, at least and at most."""
_TOGETHER = 4_096
"""Classes in one pass, which bounds the memory."""
_RARE = 1e-6
"""The chance that a cache fills sooner than in the first gap, or later than in the last."""
_EVER = 1e300


def within(rate: Floats, lookups: float) -> Floats:
    """The chance that a row was looked up in the last so many lookups; never, if it never is."""
    if np.isinf(lookups):
        return np.where(rate > NEVER_FRAC * rate.max(), 1.0, 0.0)
    return np.asarray(-np.expm1(-rate * lookups))


@dataclass(frozen=True, eq=False)
class LruSets:
    """`sets` sets of `places` places each (fractions allowed) that keep their latest rows.

    `used_bytes` `[classes]` is what all rows of a class take, `rate` `[classes]` the chance that a
    lookup goes to a given one of them (0 if none ever does), `place_bytes` what a row takes in the
    mean. Rows fall into sets by chance.

    A row is found again after a gap if fewer than `places` others of its set came in it. How many
    came is a sum of independent chances, taken as binomial of the same mean and variance: exact
    for rows of equal popularity. Che's approximation takes their mean for their number.

    Source: King 1971, Analysis of demand paging algorithms; Fill and Holst 1996, On the
    distribution of search cost for the move-to-front rule (Poisson lookups); Smith 1978, A
    comparative study of set associative memory mapping algorithms; Ehm 1991 on the binomial.
    """

    used_bytes: Floats
    rate: Floats
    place_bytes: float
    places: float
    sets: float = 1.0

    @cached_property
    def residency(self) -> Floats:
        """The chance that a row is there in steady state, `[classes]`.

        All gaps are stretched alike, by little, so that the places are filled. Part of one place is
        one for that part of the time.
        """
        chance = -np.log1p(-np.minimum(self._found(_EVER), 1.0 - 1e-15))
        filled = np.array([self._occupied() * self.place_bytes])
        kept = within(chance, characteristic_lookups(self.used_bytes, chance, filled)[0])
        return kept * min(self.places, 1.0)

    def first_found(self, lookups: float) -> Floats:
        """Share of the first so many lookups into empty places that find their row, `[classes]`."""
        part = self._found(lookups) / np.maximum(self._found(_EVER), 1e-300)
        return np.asarray(np.minimum(part, 1.0) * self.residency)

    def _found(self, lookups: float) -> Floats:
        """The same by the gaps as they are, `[classes]`."""
        parts = np.split(self.rate, range(_TOGETHER, len(self.rate), _TOGETHER))
        result = np.concatenate([self._found_at(rate, lookups) for rate in parts])
        return np.where(self._often, np.clip(result, 0.0, 1.0), 0.0)

    def _found_at(self, rate: Floats, lookups: float) -> Floats:
        """Of rows of such rates. A gap before a lookup lies within so many lookups for a share of
        1 - gap / lookups of them. By Simpson's rule; before the first gap every row stays, after
        the last none does but those of sets with places for all of their rows."""
        gaps, weight, most, stays = self._gaps

        def sooner(gap: float) -> Floats:
            passed = rate * min(gap, lookups)
            missed = np.exp(-passed)
            mean_gaps = 1.0 - missed * (1.0 + passed)
            return 1.0 - missed - mean_gaps / np.maximum(rate * lookups, 1e-300)

        passed = gaps[:, None] * rate
        missed = np.exp(-passed)
        own = (1.0 - missed) / most[:, None]
        never, half, surely = stays[:, :, None]
        bend = 2.0 * (never - 2.0 * half + surely)
        chance = passed * missed * (never + own * (surely - never - bend + own * bend))
        result = sooner(gaps[0]) + (weight * np.maximum(1.0 - gaps / lookups, 0.0)) @ chance
        return np.asarray(result + self._never_full() * (sooner(_EVER) - sooner(gaps[-1])))

    @cached_property
    def _gaps(self) -> tuple[Floats, Floats, Floats, Floats]:
        """Gaps, their weights, and the chance that the most popular row comes in them `[points]`;
        and the chances that too few others come `[3, points]`.

        A row is none of the others: asked for a row that never comes, and for rows that come half
        as surely as the most popular one, and as surely. In between by a parabola.
        """
        from scipy.special import gammaincinv

        most_others = gammaincinv(self._ways + 1.0, 1.0 - _RARE) + 1.0
        others = np.array([gammaincinv(self._ways, _RARE), most_others])
        filled = np.minimum(others, self._rows / self.sets * (1.0 - _RARE)) * self.sets
        first, last = characteristic_lookups(self.used_bytes, self.rate, filled * self.place_bytes)
        span = np.log(last / first)
        halves = int(np.clip(np.ceil(0.5 * span / _STEP), *_HALVES))
        gaps = np.geomspace(first, last, 2 * halves + 1)
        weight = np.tile([2.0, 4.0], halves + 1)[:-1]
        weight[[0, -1]] = 1.0
        used, rate = few_classes(self.used_bytes, self.rate)
        come = -np.expm1(-gaps[:, None] * rate)
        most, rows = come.max(axis=1), used / self.place_bytes
        own = np.array([0.0, 0.5, 1.0])[:, None] * most / self.sets
        mean, squares = come @ rows / self.sets, come**2 @ rows / self.sets**2
        stays = _fewer(self._ways, mean - own, squares - own**2)
        return gaps, weight * span / (6.0 * halves), most, stays

    @property
    def _ways(self) -> float:
        return max(self.places, 1.0)

    @property
    def _often(self) -> NDArray[np.bool_]:
        return np.asarray(self.rate > NEVER_FRAC * self.rate.max())

    @property
    def _rows(self) -> float:
        """That are ever looked up."""
        return float(self.used_bytes[self._often].sum() / self.place_bytes)

    def _never_full(self) -> float:
        """The chance that the other rows leave a place of a row's set free."""
        return _fewer_of(self._ways, self._rows - 1.0, self.sets)

    def _occupied(self) -> float:
        """Places that are filled in the end: of each set as many as it has rows for."""
        if self.sets == 1.0:
            return min(self._rows, self._ways)
        alone = self._rows * _fewer_of(self._ways - 1.0, self._rows - 1.0, self.sets)
        full = 1.0 - _fewer_of(self._ways, self._rows, self.sets)
        return alone + self.sets * self._ways * full


def _fewer_of(count: float, rows: float, sets: float) -> float:
    """That fewer than `count` of so many rows fall into a given one of the sets."""
    mean = np.array(rows / sets)
    return float(_fewer(count, mean, mean / sets))


def _fewer(count: float, mean: Floats, squares: Floats) -> Floats:
    """That fewer than `count` come of independent ones whose chances sum to `mean`, and the squares
    of these to `squares`: the binomial of that mean and variance."""
    from scipy.special import betaincc

    mean = np.maximum(mean, 1e-300)
    chance = np.clip(squares / mean, 1e-9, 1.0 - 1e-9)
    rest = mean / chance - count + 1.0
    chances = betaincc(max(count, 1e-300), np.maximum(rest, 1e-300), chance)
    return np.where(rest > 0.0, chances, 1.0)
