"""Replacement policies: which rows a cache holds, in closed form and by exact replay.

LRU, LRU within sets, a static hot set, LFU; plug-ins: entry point `perfmodel.cache_policies`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import numpy as np

from perfmodel.base.arrays import Floats, Ints, Mask
from perfmodel.base.registry import Registry
from perfmodel.base.zipf import touched_per_class
from perfmodel.embedding.stack_distances import lfu_distances, lru_distances
from perfmodel.errors import WorkloadError


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
        filled = characteristic_lookups(classes.used_bytes, classes.rate, capacity_bytes)
        once = classes.touched_rows(min(lookups, filled))
        after = max(lookups - filled, 0.0)
        missed = 1.0 - self.residency(classes, capacity_bytes)
        return np.asarray(once + after * classes.rows * classes.rate * missed)


POLICIES: Registry[type[Policy]] = Registry("cache policy", group="perfmodel.cache_policies")

_STEPS = 64
_PRECISION = 1e-10
_MAX_CLASSES = 4_096
NEVER_FRAC = 1e-200
"""Rows looked up less often than this share of the most popular one are never looked up."""


def characteristic_lookups(used: Floats, rate: Floats, capacity: float) -> float:
    """The T that solves `sum used (1 - exp(-rate T)) = capacity`.

    `used` `[classes]` is what all rows of a class take of the cache, in the unit of `capacity`,
    `rate` `[classes]` the chance per lookup of one of its rows. 0 for an empty cache, infinite for
    one that holds every row that is ever looked up. Newton's method in log T, kept in a bracket.

    Source: Che, Tung and Wang 2002, Hierarchical Web caching systems; Fricker, Robert and Roberts
    2012 (arXiv 1202.3974) on why it is accurate.
    """
    used, rate = few_classes(used, rate)
    if capacity <= 0:
        return 0.0
    if capacity >= used.sum() * (1.0 - 1e-12):
        return np.inf
    place = low = float(np.log(capacity / np.dot(used, rate)))
    high = float(np.log(-np.log1p(-capacity / used.sum())) - np.log(rate.min()))
    for _ in range(_STEPS):
        time = np.exp(place) * rate
        gone = np.expm1(-time)
        filled = -float(gone @ used)
        if abs(filled - capacity) <= _PRECISION * capacity:
            break
        slope = float((time * (1.0 + gone)) @ used)
        low, high = (place, high) if filled < capacity else (low, place)
        guess = place + np.log(capacity / filled) * filled / max(slope, 1e-300)
        place = float(guess) if low < guess < high else 0.5 * (low + high)
    return float(np.exp(place))


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


@POLICIES.register("lru")
@dataclass(frozen=True)
class Lru(Policy):
    """Least recently used, fully associative, by Che's approximation."""

    def residency(self, classes: RowClasses, capacity_bytes: float) -> Floats:
        lookups = characteristic_lookups(classes.used_bytes, classes.rate, capacity_bytes)
        if np.isinf(lookups):
            return np.where(classes.rate > NEVER_FRAC * classes.rate.max(), 1.0, 0.0)
        return np.asarray(-np.expm1(-classes.rate * lookups))

    def hits(self, rows: Ints, capacity_rows: int, step: Ints) -> Mask:
        return np.asarray(lru_distances(rows, step) < capacity_rows)


_MIXERS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
"""Shifts and multipliers. Source: Steele, Lea and Flood 2014, SplitMix."""
_GAPS = 65
_RARE = 1e-6
"""The chance that a set fills sooner than in the first gap, or later than in the last."""


@POLICIES.register("set_associative")
@dataclass(frozen=True)
class SetAssociativeLru(Lru):
    """Least recently used of the `ways` places of a set (FBGEMM's row cache: 32; a GPU's L2: 16).

    Rows fall into sets by chance; one is found again after a gap if fewer than `ways` others of
    its set came in it, whose number is taken as a Poisson variable.
    Source: Smith 1978, A comparative study of set associative memory mapping algorithms.
    """

    ways: int = 32

    def __post_init__(self) -> None:
        if self.ways < 1:
            raise WorkloadError(f"set_associative: {self.ways} ways")

    def residency(self, classes: RowClasses, capacity_bytes: float) -> Floats:
        """Of gaps between those in which a set hardly ever and almost surely fills; then all gaps
        stretched alike, by little, so that the places are filled."""
        from scipy.special import gammaincc, gammaincinv

        used, rate = few_classes(classes.used_bytes, classes.rate)
        rows = used * classes.rows.sum() / classes.used_bytes.sum()
        sets = capacity_bytes * rows.sum() / used.sum() / self.ways
        if sets <= 1.0:
            return super().residency(classes, capacity_bytes)
        others = rows.sum() / sets
        filled = sets * gammaincinv(self.ways, [_RARE, 1.0 - _RARE])
        first, last = (
            characteristic_lookups(rows, rate, min(each, rows.sum() * (1.0 - _RARE)))
            for each in filled
        )
        gaps = np.geomspace(first, last, _GAPS)
        came = -np.expm1(-gaps[:, None] * rate) @ rows / sets
        stays = gammaincc(self.ways, came)
        stays = np.array([1.0, *(0.5 * (stays[1:] + stays[:-1])), gammaincc(self.ways, others)])
        again = -np.expm1(-gaps[:, None] * classes.rate)
        found = stays @ np.diff(again, axis=0, prepend=0.0, append=1.0)
        held = others * gammaincc(self.ways, others)
        held += self.ways * (1.0 - gammaincc(self.ways + 1.0, others))
        chance = -np.log1p(-np.minimum(found, 1.0 - 1e-15))
        stretched = RowClasses(classes.rows, chance, classes.row_bytes)
        return super().residency(stretched, capacity_bytes * held / self.ways)

    def hits(self, rows: Ints, capacity_rows: int, step: Ints) -> Mask:
        """Sets are a hash of the row's number; places that fill no set widen the first ones."""
        sets = max(round(capacity_rows / self.ways), 1)
        state = rows.astype(np.uint64)
        for shift, multiplier in _MIXERS:
            state = (state ^ (state >> np.uint64(shift))) * np.uint64(multiplier)
        place = (state ^ (state >> np.uint64(31))) % np.uint64(sets)
        order = np.argsort(place, kind="stable")
        steps = np.cumsum(np.diff(place[order], prepend=place[:1]) != 0)
        result = np.empty(len(rows), bool)
        inside = steps * (int(step[-1]) + 1) + step[order] if len(step) else step
        ways = capacity_rows // sets + (place < capacity_rows % sets)
        result[order] = lru_distances(rows[order], inside) < ways[order]
        return result


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
        """At equal counts the last of them is as late for popular rows as for others, so the same
        part of each class is left."""
        if np.isinf(self.history_lookups):
            return StaticHotSet().residency(classes, capacity_bytes)
        expected = classes.rate * self.history_lookups
        return kept_by_counts(expected, np.ones(len(expected)), classes.used_bytes, capacity_bytes)

    def hits(self, rows: Ints, capacity_rows: int, step: Ints) -> Mask:
        return np.asarray(lfu_distances(rows, step) < capacity_rows)


_HALVINGS = 100
_SAME_FRAC = 1e-12
"""Counts per byte of rows of several sizes are one, where they differ by no more."""


def kept_by_counts(expected: Floats, size: Floats, used: Floats, capacity: float) -> Floats:
    """The chance `[classes]` that a row's count over its `size` is above the least that fits, and a
    part of those at it; counts are Poisson variables of so many `expected`.

    `used` is what all rows of a class take of `capacity`. Halves what lies between two counts; only
    classes whose chance differs between the two are computed again.
    """
    sizes, low, many = np.unique(size), 0.0, _poisson_above(expected, 0.0)
    if np.dot(used, many) <= capacity:
        return many
    high = float(np.max((expected + 12.0 * np.sqrt(expected) + 64.0) / size))
    few = _poisson_above(expected, high * size)
    for _ in range(_HALVINGS):
        count = np.floor(low * sizes)
        between, following = np.floor(high * sizes) - count, (count + 1.0) / sizes
        if between.max() <= 1.0 and np.ptp(following[between > 0]) <= _SAME_FRAC * high:
            break
        middle, chance, open_ = 0.5 * (low + high), many.copy(), np.flatnonzero(many != few)
        chance[open_] = _poisson_above(expected[open_], middle * size[open_])
        if np.dot(used, chance) <= capacity:
            high, few = middle, chance
        else:
            low, many = middle, chance
    needed = float(np.dot(used, many - few))
    part = min((capacity - float(np.dot(used, few))) / needed, 1.0) if needed > 0 else 0.0
    return np.asarray(few + part * (many - few))


def _poisson_above(mean_count: Floats, count: Floats | float) -> Floats:
    """The chance that a Poisson variable is above `count`."""
    from scipy.special import gammainc

    return np.asarray(gammainc(np.floor(count) + 1.0, mean_count), np.float64)
