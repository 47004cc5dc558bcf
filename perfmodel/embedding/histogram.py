"""Reuse histograms: how often a batch looks rows up, and the popularity of all rows behind that."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from perfmodel.base.arrays import Floats, Ints
from perfmodel.base.frames import csv_rows
from perfmodel.embedding.popularity import Popularity
from perfmodel.errors import WorkloadError

_COLUMNS = (
    *("file", "avg_indices", "avg_unique_rows"),
    *("bin_lo_excl", "bin_hi_incl", "frac_unique_rows", "frac_accesses"),
)
_OPEN_FRAC = 0.003
"""Less than this share of the lookups in no bin is what printed figures were rounded by."""
_PRINTED = 0.0005


@dataclass(frozen=True, eq=False)
class ReuseHistogram:
    """One batch of `lookups`, by how often its rows were looked up.

    `most` `[bins]` ascending is the largest count of a bin, whose smallest is one above the bin
    before; `rows` and `bin_lookups` `[bins]` are the distinct rows of each bin and the lookups that
    go to them.

    Raises `WorkloadError` where bins hold more, or fewer, lookups than their counts allow.
    """

    most: Floats
    rows: Floats
    bin_lookups: Floats
    name: str = ""

    def __post_init__(self) -> None:
        where = f"reuse histogram {self.name!r}: "
        names = ("most", "rows", "bin_lookups")
        columns = [np.asarray(getattr(self, name), np.float64) for name in names]
        if any(part.ndim != 1 or len(part) != len(columns[0]) for part in columns):
            raise WorkloadError(where + "bins, rows and lookups must be lists of one length")
        for name, part in zip(names, columns, strict=True):
            object.__setattr__(self, name, part)
        most, rows, looked_up = columns
        if not len(most) or (np.diff(most, prepend=0.0) <= 0).any():
            raise WorkloadError(where + "bins must ascend from above 0")
        if not np.isfinite(columns[1:]).all() or (rows < 0).any():
            raise WorkloadError(where + "rows and lookups must be finite and not negative")
        least = self.least
        low, high = rows * least * (1 - 1e-9), rows * most * (1 + 1e-9)
        wrong = np.flatnonzero((looked_up < low) | (looked_up > high))
        if len(wrong) or not looked_up.sum() > 0:
            place = int(wrong[0]) if len(wrong) else 0
            raise WorkloadError(
                f"{where}{looked_up[place]:g} lookups cannot go to {rows[place]:g} rows at "
                f"{least[place]:g} to {most[place]:g} each"
            )

    @property
    def lookups(self) -> float:
        return float(self.bin_lookups.sum())

    @property
    def distinct_rows(self) -> float:
        return float(self.rows.sum())

    @property
    def least(self) -> Floats:
        """The largest count below each bin's."""
        return np.append(0.0, self.most[:-1])

    def popularity(self) -> Popularity:
        """As if the batch's rows were all there are, each as popular as it was looked up.

        Right for the batch itself and for its most used rows. Of rows that it looked up a few
        times, another batch has others: see `perfmodel.embedding.histogram`.
        """
        return Popularity(self.rows, self.bin_lookups / self.lookups)


def reuse_histogram(rows: Ints, name: str = "") -> ReuseHistogram:
    """The histogram of an index stream, `rows` `[lookups]`, in bins of powers of two."""
    if not len(rows):
        raise WorkloadError(f"index stream {name!r}: no lookups")
    counts = np.unique(rows, return_counts=True)[1]
    place = np.ceil(np.log2(counts)).astype(np.int64)
    return ReuseHistogram(
        most=2.0 ** np.arange(place.max() + 1),
        rows=np.bincount(place).astype(np.float64),
        bin_lookups=np.bincount(place, counts).astype(np.float64),
        name=name,
    )


def read_histograms(path: str | Path) -> dict[str, ReuseHistogram]:
    """Histograms by name from a CSV file with one row per bin.

    Columns: `file` (the name), `avg_indices` and `avg_unique_rows` of the batch, `bin_lo_excl`,
    `bin_hi_incl`, `frac_unique_rows`, `frac_accesses`. Lookups in no bin were to rows beyond the
    last: they are put into one more bin, an octave wide. Shares of rows may be printed with three
    decimals: where lookups tell more, they decide.

    Raises `WorkloadError` that names the file, and the line, where it cannot be read.
    """
    bins: dict[str, list[list[float]]] = {}
    for where, record in csv_rows(path, _COLUMNS, error=WorkloadError):
        try:
            values = [float(record[name]) for name in _COLUMNS[1:]]
        except ValueError:
            raise WorkloadError(f"{where}: a number cannot be read") from None
        bins.setdefault(record["file"], []).append(values)
    if not bins:
        raise WorkloadError(f"{path}: holds no histogram")
    return {name: _of_shares(name, np.array(each), str(path)) for name, each in bins.items()}


def _of_shares(name: str, bins: Floats, where: str) -> ReuseHistogram:
    lookups, distinct, low, most, rows_frac, lookups_frac = bins[np.argsort(bins[:, 3])].T
    if not np.isfinite(bins).all() or (lookups <= 0).any() or (low < 0).any():
        raise WorkloadError(f"{where}: histogram {name!r}: figures must be finite and positive")
    if (most <= low).any() or (np.minimum(rows_frac, lookups_frac) < 0).any():
        raise WorkloadError(f"{where}: histogram {name!r}: a bin ends before it begins, or is < 0")
    beyond = 1.0 - lookups_frac.sum()
    if beyond > _OPEN_FRAC:
        low, most = np.append(low, most[-1]), np.append(most, 2 * most[-1])
        rows_frac, lookups_frac = np.append(rows_frac, 0.0), np.append(lookups_frac, beyond)
    looked_up = lookups_frac / lookups_frac.sum() * lookups[0]
    usual = looked_up / np.sqrt(np.maximum(low, 0.5) * most)
    usual = np.where(most == low + 1, looked_up / most, usual)
    printed = distinct[0] * rows_frac
    slack = distinct[0] * _PRINTED
    rows = np.clip(usual, np.maximum(printed - slack, 0.0), printed + slack)
    rows = np.clip(rows, looked_up / most, looked_up / (low + 1))
    return ReuseHistogram(most=most, rows=rows, bin_lookups=looked_up, name=name)


def popularity_of_similar(
    histograms: Iterable[ReuseHistogram], lookups: float, distinct_rows: float
) -> Popularity:
    """The popularity within a batch of so many `lookups` of so many `distinct_rows`.

    The histogram nearest in lookups lends its shape: as many of the rows to each of its bins, and
    the lookups that a row has beyond its first grow in all bins alike, so that those of the batch
    come out. As `ReuseHistogram.popularity`, it knows no rows but those of the batch.

    Raises `WorkloadError` where there is no histogram, where no row of the nearest is looked up
    twice, or where there are more rows than lookups.
    """
    known = list(histograms)
    if not known:
        raise WorkloadError("borrowed: no reuse histogram")
    if not 0.0 < distinct_rows <= lookups < np.inf:
        raise WorkloadError(f"borrowed: {lookups:g} lookups of {distinct_rows:g} distinct rows")
    nearest = min(known, key=lambda each: abs(np.log(each.lookups / lookups)))
    repeats = nearest.lookups - nearest.distinct_rows
    if not repeats > 0.0:
        raise WorkloadError(f"borrowed: reuse histogram {nearest.name!r}: no row comes twice")
    rows = nearest.rows * (distinct_rows / nearest.distinct_rows)
    beyond = (nearest.bin_lookups - nearest.rows) * ((lookups - distinct_rows) / repeats)
    return Popularity(rows, (rows + beyond) / lookups)


_PER_OCTAVE = 3
_RAREST = 2.0**-4
"""Rows expected this often in a batch are the rarest that its histogram can show."""
_FREQUENT = 512.0
"""Rows looked up more often than this are as popular as they look: chance moves them by 4 %."""


def population(histogram: ReuseHistogram, table_rows: float = np.inf) -> Popularity:
    """The popularity under which independent lookups give such a histogram.

    A mixture of Poisson rates, three per octave: the non-negative weights under which rows and
    lookups per bin come closest (least squares of relative errors). Rows that a batch saw once
    stand for others that it did not see; how many there are that hardly any batch sees, it cannot
    tell. `table_rows` is a bound on the rows.

    Raises `WorkloadError` where the batch saw more rows than that.

    Source: mixtures of Poisson counts as in Good and Toulmin 1956, Efron and Thisted 1976.
    """
    if table_rows < histogram.distinct_rows * (1 - 1e-9):
        raise WorkloadError(
            f"reuse histogram {histogram.name!r}: {histogram.distinct_rows:g} distinct rows of a "
            f"table of {table_rows:g}"
        )
    held = histogram.rows > 0
    columns = (histogram.least, histogram.most, histogram.rows, histogram.bin_lookups)
    least, most, rows, looked_up = (part[held] for part in columns)
    mixed = most <= _FREQUENT
    counts, rates = rows[~mixed], (looked_up / rows)[~mixed]
    if mixed.any():
        # Rates up to where counts hardly come out above the last bin.
        top = np.log2(most[mixed][-1]) - 0.5 / _PER_OCTAVE * (most[mixed][-1] > 1)
        grid = 2.0 ** np.arange(top, np.log2(_RAREST), -1.0 / _PER_OCTAVE)[::-1]
        weights = _weights(grid, least[mixed], most[mixed], rows[mixed], looked_up[mixed])
        weights *= looked_up[mixed].sum() / np.dot(weights, grid)
        weights, grid = _within(weights, grid, table_rows - counts.sum())
        counts, rates = np.concatenate([weights, counts]), np.concatenate([grid, rates])
    return Popularity(counts, counts * rates / np.dot(counts, rates))


def _weights(grid: Floats, least: Floats, most: Floats, rows: Floats, looked_up: Floats) -> Floats:
    """Rows of each rate `[rates]`. The mean of a Poisson count within limits is the rate times the
    chance of a count one lower."""
    from scipy.optimize import nnls
    from scipy.stats import poisson

    low, high = least[:, None], most[:, None]
    chance = poisson.cdf(high, grid) - poisson.cdf(low, grid)
    mean = grid * (poisson.cdf(high - 1.0, grid) - poisson.cdf(low - 1.0, grid))
    system = np.concatenate([chance / rows[:, None], mean / looked_up[:, None]])
    unit = rows.sum()
    weights: Floats = nnls(system * unit, np.ones(2 * len(rows)))[0] * unit
    return weights


def _within(weights: Floats, rates: Floats, most_rows: float) -> tuple[Floats, Floats]:
    """The rarest rows joined into fewer and more popular ones, so that `most_rows` remain: `rates`
    ascending, lookups kept."""
    surplus = weights.sum() - most_rows
    if surplus <= 0:
        return weights, rates
    rows, lookups = np.cumsum(weights) - surplus, np.cumsum(weights * rates)
    fits = (rows > 0) & (lookups <= rows * np.append(rates[1:], np.inf))
    last = int(np.argmax(fits))
    rest = slice(last + 1, None)
    mean = lookups[last] / rows[last]
    return np.append(rows[last], weights[rest]), np.append(mean, rates[rest])
