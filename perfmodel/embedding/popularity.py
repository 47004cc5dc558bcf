"""How popular the rows of a table are: classes of rows of equal popularity, uniform and Zipf."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from perfmodel.base.arrays import Floats
from perfmodel.base.zipf import STEEPEST, touched_rows, zipf_classes
from perfmodel.errors import WorkloadError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_SHARE_TOLERANCE = 1e-6
_HOT_FRAC = 0.01
_POINTS = 200


@dataclass(frozen=True, eq=False, repr=False)
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
        ends, mass = self._cumulative
        return np.asarray(np.interp(np.asarray(hot_rows, np.float64), ends, mass), np.float64)

    def hot_rows(self, covered_frac: ArrayLike) -> Floats:
        """The most popular rows that `covered_frac` of the lookups need (any shape).

        Source: Sethi et al. 2022, RecShard (arXiv 2201.10095): the inverse of a table's
        cumulative distribution.
        """
        ends, mass = self._cumulative
        return np.asarray(np.interp(np.asarray(covered_frac, np.float64), mass, ends), np.float64)

    def part(self, rows_frac: float) -> Popularity:
        """A shard that holds `rows_frac` of the rows of every class (row-wise, rows hashed)."""
        if not 0.0 < rows_frac <= 1.0:
            raise WorkloadError(f"popularity: a shard of {rows_frac:g} of the rows")
        return Popularity(self.rows * rows_frac, self.share)

    def plot(self, title: str = "") -> Figure:
        """The share of the lookups that the most popular rows take, over how many they are."""
        from perfmodel.plot import curves_figure

        hot = np.geomspace(min(1.0, self.total_rows), self.total_rows, _POINTS)
        frame = {"name": ["table"] * _POINTS, "size": hot, "share": 100 * self.covered_frac(hot)}
        labels = ("most popular rows", "lookups (%)")
        return curves_figure(frame, "size", "share", "name", labels=labels, title=title, log="x")

    def __repr__(self) -> str:
        hot = float(self.covered_frac(_HOT_FRAC * self.total_rows))
        return (
            f"Popularity({self.total_rows:.6g} rows in {len(self.rows)} classes, "
            f"{_HOT_FRAC:.0%} of them take {hot:.1%} of the lookups)"
        )

    @cached_property
    def _cumulative(self) -> tuple[Floats, Floats]:
        ends = np.concatenate([[0.0], np.cumsum(self.rows)])
        mass = np.concatenate([[0.0], np.cumsum(self.share)])
        return ends, np.minimum(mass, 1.0)


def _chance(rows: Floats, share: Floats) -> Floats:
    return np.divide(share, rows, out=np.zeros_like(share), where=rows > 0)


_HEAD, _TAIL = 192, 256
"""Ranks that are a class of their own, and classes that share the others evenly by logarithm."""
_MAX_ALPHA = 10.0
_HALVINGS = 24
"""Of the exponents up to the steepest, down to 1e-6."""


def uniform(rows: int) -> Popularity:
    """Every one of `rows` rows is looked up equally often."""
    _require_rows(rows)
    return Popularity(np.array([float(rows)]), np.ones(1))


def zipf(rows: int, alpha: float, shift: float = 0.0, *, smooth: bool = False) -> Popularity:
    """Row of rank r (from 1) is looked up in proportion to `(r + shift) ** -alpha`.

    `shift` is that of Zipf and Mandelbrot (0: Zipf). `smooth` is what generators draw that invert
    an integral (as this project's do): in proportion to that of `x ** -alpha` from r to r + 1. The
    most popular rows are summed one by one, the others integrated: within 1e-4 of the full sums.

    Raises `WorkloadError` where there are not row numbers, or `alpha` is not within 0 to 10.
    """
    _require_rows(rows)
    if not 0.0 <= alpha <= _MAX_ALPHA or not 0.0 <= shift < rows:
        raise WorkloadError(
            f"zipf: alpha {alpha:g}, shift {shift:g}: 0 to {_MAX_ALPHA:g}, 0 to rows"
        )
    if alpha == 0.0:
        return uniform(rows)
    size, exponent = np.array([float(rows)]), np.array([alpha])
    counts, share = zipf_classes(size, exponent, shift, smooth=smooth, head=_HEAD, tail=_TAIL)
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
    low, high = np.zeros_like(size), np.full_like(size, STEEPEST)
    is_skewed = _zipf_distinct(size, low, drawn) > distinct
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        above = _zipf_distinct(size, middle, drawn) > distinct
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    alpha = np.where(is_skewed, 0.5 * (low + high), 0.0)
    return alpha[kind.reshape(-1)].reshape(tables[0].shape)


def _zipf_distinct(rows: Floats, alpha: Floats, lookups: Floats) -> Floats:
    counts, share = zipf_classes(rows, alpha)
    chance = share / np.maximum(counts, 1e-300)
    return touched_rows(counts, chance, lookups)


def _require_rows(rows: float) -> None:
    if not rows >= 1:
        raise WorkloadError(f"a table of {rows:g} rows cannot be looked up")
