"""Replacement policies: which rows a cache holds, in closed form and by exact replay.

LRU, LRU within sets, a static hot set, LFU; plug-ins: entry point `perfmodel.cache_policies`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np

from perfmodel.base.arrays import Floats, Ints, Mask
from perfmodel.base.registry import Registry
from perfmodel.base.zipf import touched_per_class
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


def _steps(rows: Ints, step: Ints) -> Iterator[list[int]]:
    stream, ends = rows.tolist(), [*(np.flatnonzero(np.diff(step)) + 1).tolist(), len(rows)]
    begin = 0
    for end in ends:
        yield stream[begin:end]
        begin = end


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
        return _lru_hits(rows, step, np.zeros(len(rows), np.int64), np.array([capacity_rows]))


def _lru_hits(rows: Ints, step: Ints, place: Ints, ways: Ints) -> Mask:
    """Of rows that fall into the sets `place` `[lookups]`, of so many `ways` `[sets]` each."""
    sets: list[OrderedDict[int, None]] = [OrderedDict() for _ in ways]
    most, set_of, found, at = ways.tolist(), place.tolist(), list[bool](), 0
    for batch in _steps(rows, step):
        held = set_of[at : at + len(batch)]
        found += [row in sets[own] for row, own in zip(batch, held, strict=True)]
        for row, own in zip(batch, held, strict=True):
            sets[own][row] = None
            sets[own].move_to_end(row)
            if len(sets[own]) > most[own]:
                sets[own].popitem(last=False)
        at += len(batch)
    return np.array(found, bool)


_GAPS = 65
_RARE = 1e-6  # the chance that a set fills sooner than in the first gap, or later than in the last


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
        from pandas.util import hash_array

        sets = max(round(capacity_rows / self.ways), 1)
        ways = capacity_rows // sets + (np.arange(sets) < capacity_rows % sets)
        place = hash_array(rows.astype(np.uint64)) % np.uint64(sets)
        return _lru_hits(rows, step, place.astype(np.int64), ways)


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

    def hits(self, rows: Ints, capacity_rows: int, step: Ints) -> Mask:
        """Hot rows are there from the start."""
        seen, counts = np.unique(rows if self.profile is None else self.profile, return_counts=True)
        hot = seen[np.argsort(-counts, kind="stable")[:capacity_rows]]
        return np.isin(rows, hot)


@POLICIES.register("lfu")
@dataclass(frozen=True)
class Lfu(Policy):
    """Least frequently used, by counts of all rows since the beginning; ties: the older one leaves.

    In steady state the most popular rows, as the static hot set. A row enters where its count is at
    least the least of those in the cache (as in FBGEMM's LFU cache).
    """

    def residency(self, classes: RowClasses, capacity_bytes: float) -> Floats:
        return classes.best_kept_frac(classes.rate, capacity_bytes)

    def hits(self, rows: Ints, capacity_rows: int, step: Ints) -> Mask:
        counts: Counter[int] = Counter()
        held: dict[int, tuple[int, int]] = {}
        order: list[tuple[int, int, int]] = []  # with older entries of rows, which are passed over
        found: list[bool] = []
        for batch in _steps(rows, step):
            begin = len(found)
            found += [row in held for row in batch]
            for at, row in enumerate(batch, begin):
                counts[row] += 1
                if row not in held and len(held) >= capacity_rows:
                    while order and held.get(order[0][2]) != order[0][:2]:
                        heappop(order)
                    if not order or order[0][0] > counts[row]:
                        continue
                    del held[heappop(order)[2]]
                held[row] = counts[row], at
                heappush(order, (counts[row], at, row))
        return np.array(found, bool)
