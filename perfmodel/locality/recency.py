"""Whether a row is still there when it is looked up again, in places that keep the latest rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from perfmodel.locality.characteristic import NEVER_FRAC, characteristic_lookups
from perfmodel.locality.popularity import Floats

_STEP, _LEAST_HALVES = 0.4, 4
"""Distance of two gaps by logarithm, and half of how many there are at least."""
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
    for rows that are looked up alike. Che's approximation takes their mean for their number.

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
        """The same by the gaps as they are; of so many lookups a share of 1 - gap / lookups has
        another one that gap before it."""
        gaps, again, longer = self._gaps

        def sooner(gap: float) -> Floats:
            passed = self.rate * min(gap, lookups)
            missed = np.exp(-passed)
            mean_gaps = 1.0 - missed * (1.0 + passed)
            return 1.0 - missed - mean_gaps / np.maximum(self.rate * lookups, 1e-300)

        found = sooner(gaps[0]) + np.maximum(1.0 - gaps / lookups, 0.0) @ again
        found += longer * (sooner(_EVER) - sooner(gaps[-1]))
        return np.asarray(np.clip(found, 0.0, 1.0))

    @cached_property
    def _gaps(self) -> tuple[Floats, Floats, Floats]:
        """Gaps `[points]`, the chance of each and that the row stays `[points, classes]`, and that
        it stays for longer than the last of them, `[classes]`. By Simpson's rule."""
        from scipy.special import gammaincinv

        most = gammaincinv(self._ways + 1.0, 1.0 - _RARE) + 1.0
        others = np.array([gammaincinv(self._ways, _RARE), most])
        filled = np.minimum(others, self._rows / self.sets * (1.0 - _RARE)) * self.sets
        first, last = characteristic_lookups(self.used_bytes, self.rate, filled * self.place_bytes)
        span = np.log(last / first)
        halves = max(int(np.ceil(0.5 * span / _STEP)), _LEAST_HALVES)
        gaps = np.geomspace(first, last, 2 * halves + 1)
        passed = gaps[:, None] * self.rate
        missed = np.exp(-passed)
        seen = 1.0 - missed
        stays = self._stays(seen)
        weight = np.tile([2.0, 4.0], halves + 1)[:-1]
        weight[[0, -1]] = 1.0
        weight *= span / (6.0 * halves)
        return gaps, weight[:, None] * passed * missed * stays, stays[-1]

    def _stays(self, seen: Floats) -> Floats:
        """The chance that too few others came, by those that each row did `[points, classes]`.

        A row is none of the others: asked for rows that came as surely as the most popular one,
        half as surely, and never; in between by a parabola.
        """
        rows, most = self.used_bytes / self.place_bytes, seen.max(axis=1)
        own = np.array([0.0, 0.5, 1.0])[:, None] * most / self.sets
        mean, squares = seen @ rows / self.sets, seen**2 @ rows / self.sets**2
        none, half, full = _fewer(self._ways, mean - own, squares - own**2)[:, :, None]
        part, bend = seen / np.maximum(most, 1e-300)[:, None], 2.0 * (none - 2.0 * half + full)
        return np.asarray(none + part * (full - none - bend + part * bend))

    @property
    def _ways(self) -> float:
        return max(self.places, 1.0)

    @property
    def _rows(self) -> float:
        return float(self.used_bytes[self.rate > 0].sum() / self.place_bytes)

    def _occupied(self) -> float:
        """Places that are filled in the end: of each set as many as it has rows for."""
        share = 1.0 / self.sets
        if share == 1.0:
            return min(self._rows, self._ways)
        mean, others = self._rows * share, (self._rows - 1.0) * share
        held = self._rows * _fewer(self._ways - 1.0, np.array(others), np.array(others * share))
        full = 1.0 - _fewer(self._ways, np.array(mean), np.array(mean * share))
        return float(held + self.sets * self._ways * full)


def _fewer(count: float, mean: Floats, squares: Floats) -> Floats:
    """That fewer than `count` come of independent ones whose chances sum to `mean`, and the squares
    of these to `squares`: the binomial of that mean and variance."""
    from scipy.special import betaincc

    mean = np.maximum(mean, 1e-300)
    chance = np.clip(squares / mean, 1e-9, 1.0 - 1e-9)
    rest = mean / chance - count + 1.0
    chances = betaincc(max(count, 1e-300), np.maximum(rest, 1e-300), chance)
    return np.where(rest > 0.0, chances, 1.0)
