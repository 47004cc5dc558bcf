"""How popular the rows of a table are, in classes of equal popularity: uniform, by Zipf's law; the
rows that independent lookups touch; what ranks have of them, which hold equal parts of the rows.

Rows in the order of their popularity, cut in blocks: each part has what lies between its ends.
Popular rows anywhere: each row is on any of the ranks by chance, so that the busiest has more than
the mean; by how much is the expected maximum over ranks, each row that weighs drawn by itself, all
others as a normal deviation. Of several tables each has its part of that by its variance, as of
sums of normal variables.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfmodel.base.arrays import Floats
from perfmodel.errors import WorkloadError

STEEPEST = 64.0
"""Beyond it all lookups are of the first row, to the last bit of a float64."""


def zipf_classes(
    rows: Floats, alpha: Floats, *, smooth: bool = False, head: int = 32, tail: int = 64
) -> tuple[Floats, Floats]:
    """Rows and share of lookups of each class of many tables, both `[tables, head + tail]`; one
    class where all are uniform.

    `rows` and `alpha` `[tables]`. Rank r (from 1) is looked up in proportion to
    `r ** -alpha`; `smooth`: in proportion to the integral of `x ** -alpha` from r to
    r + 1. A class of a table with fewer rows is empty. The sum over ranks a to b of a tail class is
    the integral from a - 1/2 to b + 1/2 (midpoint rule; its first neglected term is
    `alpha (alpha + 1) / (24 head^2)` of the sum).
    """
    rows = np.maximum(np.asarray(rows, np.float64), 1.0)[:, None]
    exponent = np.minimum(np.asarray(alpha, np.float64), STEEPEST)[:, None]
    if not exponent.any():
        return rows, np.ones_like(rows)
    single = np.minimum(np.arange(1.0, head + 1.0)[None, :], rows)
    places = np.arange(1.0, tail + 1.0)[None, :] / tail
    beyond = head * (np.maximum(rows, head) / head) ** places
    ends = np.concatenate([single, np.minimum(beyond, rows)], axis=1)
    begins = np.concatenate([np.zeros_like(rows), ends[:, :-1]], axis=1)
    counts = ends - begins
    offset = 1.0 if smooth else 0.5
    weight = _integral(begins + offset, ends + offset, exponent)
    if not smooth:
        weight[:, :head] = counts[:, :head] * single**-exponent
    return counts, weight / weight.sum(axis=1, keepdims=True)


def _integral(lower: Floats, upper: Floats, alpha: Floats) -> Floats:
    """Of `x ** -alpha` from `lower` to `upper`, without loss of digits near alpha 1."""
    power = 1.0 - alpha
    length = np.log(upper / lower)
    safe = np.where(np.abs(power) < 1e-12, 1.0, power)
    grown = np.where(np.abs(power) < 1e-12, length, np.expm1(safe * length) / safe)
    return np.asarray(lower**power * grown)


def touched_class_rows(rows: Floats, chance: Floats, lookups: Floats) -> Floats:
    """Expected distinct rows of each class that `lookups` independent ones touch:
    `rows (1 - (1 - chance)^lookups)`, `[..., classes]`.

    `rows` and `chance` `[..., classes]`, `lookups` any shape that broadcasts with theirs less the
    classes.
    """
    log_missed = np.log1p(-np.minimum(chance, 1.0 - 1e-16))
    return np.asarray(-rows * np.expm1(np.asarray(lookups, np.float64)[..., None] * log_missed))


def touched_rows(rows: Floats, chance: Floats, lookups: Floats) -> Floats:
    """The same of all classes together."""
    return np.asarray(np.sum(touched_class_rows(rows, chance, lookups), axis=-1))


_SHARE_TOLERANCE = 1e-6


@dataclass(frozen=True, eq=False)
class Popularity:
    """The rows of a table in classes, the most popular first.

    `rows` `[classes]` is how many rows a class has (fractions where a class stands for a piece of
    a smooth distribution), `share` `[classes]` the fraction of the table's lookups that go to all
    of them together. Lookups are independent of one another (the independent reference model).

    Raises `WorkloadError` where the classes cannot be a distribution.
    """

    rows: Floats
    share: Floats

    def __post_init__(self) -> None:
        rows, share = np.asarray(self.rows, np.float64), np.asarray(self.share, np.float64)
        if rows.ndim != 1 or rows.shape != share.shape or not len(rows):
            raise WorkloadError("popularity: rows and shares must be two lists of one length")
        if not (np.isfinite(rows).all() and np.isfinite(share).all()):
            raise WorkloadError("popularity: rows and shares must be finite")
        if (rows < 0).any() or (share < 0).any() or ((rows == 0) & (share > 0)).any():
            raise WorkloadError("popularity: a class has rows, and its share is not negative")
        total = share.sum()
        if abs(total - 1.0) > _SHARE_TOLERANCE:
            raise WorkloadError(f"popularity: shares of lookups sum to {total:.6g}, not to 1")
        order = np.argsort(-_chance(rows, share), kind="stable")
        order = order[rows[order] > 0]
        object.__setattr__(self, "rows", rows[order])
        object.__setattr__(self, "share", share[order] / total)

    @property
    def chance(self) -> Floats:
        """That a lookup goes to one given row of each class, `[classes]`."""
        return _chance(self.rows, self.share)

    @property
    def total_rows(self) -> float:
        return float(self.rows.sum())

    def distinct_rows(self, lookups: ArrayLike) -> Floats:
        """Expected distinct rows among so many `lookups` (any shape; the result has the same)."""
        return touched_rows(self.rows, self.chance, np.asarray(lookups, np.float64))

    def covered_frac(self, hot_rows: ArrayLike) -> Floats:
        """Share of the lookups that go to the `hot_rows` most popular rows (any shape)."""
        return np.asarray(np.interp(np.asarray(hot_rows, np.float64), *self._cumulative))

    def hot_rows(self, covered_frac: ArrayLike) -> Floats:
        """The most popular rows that `covered_frac` of the lookups need (any shape).

        Source: Sethi et al. 2022, RecShard (arXiv 2201.10095): the inverse of a table's
        cumulative distribution.
        """
        ends, mass = self._cumulative
        return np.asarray(np.interp(np.asarray(covered_frac, np.float64), mass, ends), np.float64)

    def held_frac(self, after_rows: float, until_rows: float) -> Floats:
        """Share `[classes]` of the rows of each class that are among the `until_rows` most popular
        and not among the `after_rows` most popular; rows of a class are taken alike."""
        ends, _ = self._cumulative
        held = np.minimum(ends[1:], until_rows) - np.maximum(ends[:-1], after_rows)
        return np.asarray(np.clip(held / self.rows, 0.0, 1.0))

    def part(self, rows_frac: ArrayLike) -> Popularity:
        """A shard that holds `rows_frac` of the rows of every class, one number or `[classes]`."""
        frac = np.broadcast_to(np.asarray(rows_frac, np.float64), self.rows.shape)
        if not (frac.min() >= 0.0 and 0.0 < frac.max() <= 1.0):
            raise WorkloadError(f"popularity: a shard of {frac.min():g} to {frac.max():g} of rows")
        share = self.share * frac
        if not share.any():  # nobody looks its rows up
            share = self.rows * frac
        return Popularity(self.rows * frac, share / share.sum())

    @cached_property
    def _cumulative(self) -> tuple[Floats, Floats]:
        ends = np.concatenate([[0.0], np.cumsum(self.rows)])
        mass = np.concatenate([[0.0], np.cumsum(self.share)])
        return ends, np.minimum(mass, 1.0)


def _chance(rows: Floats, share: Floats) -> Floats:
    return np.divide(share, rows, out=np.zeros_like(share), where=rows > 0)


_HEAD, _TAIL = 192, 256
"""Ranks that are a class of their own, and classes that share the others evenly by logarithm."""
MAX_ALPHA = 10.0
_HALVINGS = 24  # of the exponents up to the steepest, down to 1e-6


def uniform(rows: int) -> Popularity:
    """Every one of `rows` rows is looked up equally often."""
    _require_rows(rows)
    return Popularity(np.array([float(rows)]), np.ones(1))


def zipf(rows: int, alpha: float, *, smooth: bool = False) -> Popularity:
    """Row of rank r (from 1) is looked up in proportion to `r ** -alpha`.

    `smooth` is what generators draw that invert
    an integral (as this project's do): in proportion to that of `x ** -alpha` from r to r + 1. The
    most popular rows are summed one by one, the others integrated: within 1e-4 of the full sums.

    Raises `WorkloadError` where there are not row numbers, or `alpha` is not within 0 to 10.
    """
    _require_rows(rows)
    if not 0.0 <= alpha <= MAX_ALPHA:
        raise WorkloadError(f"zipf: alpha {alpha:g}: expected 0 to {MAX_ALPHA:g}")
    if alpha == 0.0:
        return uniform(rows)
    size, exponent = np.array([float(rows)]), np.array([alpha])
    counts, share = zipf_classes(size, exponent, smooth=smooth, head=_HEAD, tail=_TAIL)
    return Popularity(counts[0], share[0])


def zipf_alpha_of(rows: ArrayLike, lookups: ArrayLike, distinct_rows: ArrayLike) -> Floats:
    """The exponent under which `lookups` into `rows` touch so many `distinct_rows`.

    All of any shape that broadcasts with the others', as is the result; equal ones are asked once.
    0 where they touch as many as uniform lookups do, or more. By bisection to 1e-6.
    Raises `WorkloadError` where that many rows cannot have been touched.
    """
    tables = np.broadcast_arrays(
        *(np.asarray(x, np.float64) for x in (rows, lookups, distinct_rows))
    )
    size, drawn, distinct = (column.ravel() for column in tables)
    _require_rows(float(size.min(initial=np.inf)))
    cannot = ~((distinct > 0.0) & (distinct <= np.minimum(size, drawn) * (1.0 + 1e-9)))
    if cannot.any():
        at = int(np.argmax(cannot))
        raise WorkloadError(
            f"zipf: {drawn[at]:g} lookups into {size[at]:.0f} rows cannot touch "
            f"{distinct[at]:g} of them"
        )
    kinds, kind = np.unique((size, drawn, distinct), axis=1, return_inverse=True)
    size, drawn, distinct = kinds

    def touches_more(alpha: Floats) -> NDArray[np.bool_]:
        counts, share = zipf_classes(size, alpha)
        touched = touched_rows(counts, share / np.maximum(counts, 1e-300), drawn)
        return np.asarray(touched > distinct)

    low, high = np.zeros_like(size), np.full_like(size, STEEPEST)
    is_skewed = touches_more(low)
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        above = touches_more(middle)
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    alpha = np.where(is_skewed, 0.5 * (low + high), 0.0)
    return alpha[kind.reshape(-1)].reshape(tables[0].shape)


def _require_rows(rows: float) -> None:
    if not rows >= 1:
        raise WorkloadError(f"a table of {rows:g} rows cannot be looked up")


DRAWS, SEED = 1000, 1
"""Of the expected maximum, which is then within 0.5 %."""
HEAVY_FRAC, MOST_HEAVY = 0.03, 1000
"""Rows with so much of a mean rank's load are drawn one by one, of a table so many at most."""


@dataclass(frozen=True)
class Scattered:
    """A table whose rows fall by chance to `ranks`, and what all its lookups weigh."""

    popularity: Popularity
    ranks: tuple[int, ...]
    weight: float

    @property
    def row_weights(self) -> Floats:
        """What a row of each class weighs beyond a mean row, `[classes]`: parts have equally many
        rows."""
        use = self.popularity
        return self.weight * (use.chance - 1.0 / use.total_rows)

    @property
    def variance(self) -> float:
        """Of what all its rows weigh, each alone."""
        return float(np.dot(self.popularity.rows, self.row_weights**2))


@lru_cache(maxsize=64)
def busiest_load(tables: tuple[Scattered, ...], mean: tuple[float, ...]) -> float:
    """The expected load of the busiest of the ranks with a part of any of `tables`, where `mean`
    `[ranks]` are the expected loads, everything in them."""
    generator = np.random.default_rng(SEED)
    load = np.zeros((DRAWS, len(mean)))
    by_ranks: dict[tuple[int, ...], list[Scattered]] = {}
    for table in tables:
        by_ranks.setdefault(table.ranks, []).append(table)
    least = HEAVY_FRAC * sum(mean) / len(mean)
    for ranks, own in by_ranks.items():
        parts, deviation, variance = len(ranks), np.zeros((DRAWS, len(ranks))), 0.0
        for table in own:
            rows = table.popularity.rows
            weight = table.row_weights
            heavy = (weight >= least) & (np.cumsum(rows) <= MOST_HEAVY)
            single = np.repeat(weight[heavy], np.rint(rows[heavy]).astype(np.int64))
            place = generator.integers(parts, size=(DRAWS, len(single)))
            place += parts * np.arange(DRAWS)[:, None]
            drawn = np.broadcast_to(single, place.shape).ravel()
            found = np.bincount(place.ravel(), drawn, DRAWS * parts).reshape(DRAWS, parts)
            deviation += found - single.sum() / parts
            variance += float(np.dot(rows[~heavy], weight[~heavy] ** 2))
        normal = generator.standard_normal((DRAWS, parts))
        normal -= normal.mean(axis=1, keepdims=True)  # what one has, others have not
        load[:, list(ranks)] += deviation + normal * np.sqrt(variance / parts)
    load += np.array(mean) - load.mean(axis=0)
    holders = sorted({rank for ranks in by_ranks for rank in ranks})
    return float(load[:, holders].max(axis=1).mean())
