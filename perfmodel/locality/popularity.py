"""How popular the rows of one embedding table are: classes of rows that are looked up alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfmodel.errors import WorkloadError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]
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
        """Rows of the table."""
        return float(self.rows.sum())

    def distinct_rows(self, lookups: ArrayLike) -> Floats:
        """Expected distinct rows among so many `lookups` (any shape; the result has the same)."""
        return touched_rows(self.rows, self.chance, np.asarray(lookups, np.float64))

    def covered_frac(self, hot_rows: ArrayLike) -> Floats:
        """Share of the lookups that go to the `hot_rows` most popular rows (any shape)."""
        ends, mass = self._cumulative()
        return np.asarray(np.interp(np.asarray(hot_rows, np.float64), ends, mass), np.float64)

    def hot_rows(self, covered_frac: ArrayLike) -> Floats:
        """The most popular rows that `covered_frac` of the lookups need (any shape).

        Source: Sethi et al. 2022, RecShard (arXiv 2201.10095): the inverse of a table's
        cumulative distribution.
        """
        ends, mass = self._cumulative()
        return np.asarray(np.interp(np.asarray(covered_frac, np.float64), mass, ends), np.float64)

    def part(self, rows_frac: float) -> Popularity:
        """A shard that holds `rows_frac` of the rows of every class (row-wise, rows hashed)."""
        if not 0.0 < rows_frac <= 1.0:
            raise WorkloadError(f"popularity: a shard of {rows_frac:g} of the rows")
        return Popularity(self.rows * rows_frac, self.share)

    def plot(self, title: str = "") -> Figure:
        """The share of the lookups that the most popular rows take, over how many they are."""
        from perfmodel.plot import shares_figure

        hot = np.geomspace(min(1.0, self.total_rows), self.total_rows, _POINTS)
        frame = {"name": ["table"] * _POINTS, "size": hot, "share": self.covered_frac(hot)}
        return shares_figure(frame, size="most popular rows", share="lookups", title=title)

    def __repr__(self) -> str:
        hot = float(self.covered_frac(_HOT_FRAC * self.total_rows))
        return (
            f"Popularity({self.total_rows:.6g} rows in {len(self.rows)} classes, "
            f"{_HOT_FRAC:.0%} of them take {hot:.1%} of the lookups)"
        )

    def _cumulative(self) -> tuple[Floats, Floats]:
        ends = np.concatenate([[0.0], np.cumsum(self.rows)])
        mass = np.concatenate([[0.0], np.cumsum(self.share)])
        return ends, np.minimum(mass, 1.0)


def touched_rows(rows: Floats, chance: Floats, lookups: Floats) -> Floats:
    """Expected distinct rows of `lookups` independent ones, all classes together.

    `rows` and `chance` `[..., classes]`, `lookups` any shape that broadcasts with theirs less the
    classes, as is the result.
    """
    return np.asarray(np.sum(touched_per_class(rows, chance, lookups), axis=-1))


def touched_per_class(rows: Floats, chance: Floats, lookups: Floats) -> Floats:
    """The same of each class: `rows (1 - (1 - chance)^lookups)`, `[..., classes]`."""
    log_missed = np.log1p(-np.minimum(chance, 1.0 - 1e-16))
    return np.asarray(-rows * np.expm1(np.asarray(lookups, np.float64)[..., None] * log_missed))


def _chance(rows: Floats, share: Floats) -> Floats:
    return np.divide(share, rows, out=np.zeros_like(share), where=rows > 0)
