"""From the reuse in one batch to the popularity of all rows, those that it did not see included."""

from __future__ import annotations

import numpy as np

from perfmodel.errors import WorkloadError
from perfmodel.locality.histogram import ReuseHistogram
from perfmodel.locality.popularity import Floats, Popularity

_PER_OCTAVE = 3
_RAREST = 2.0**-4
"""Rows expected this often in a batch are the rarest that its histogram can tell of."""
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
    most, rows, looked_up = (
        part[held] for part in (histogram.most, histogram.rows, histogram.bin_lookups)
    )
    least = np.concatenate([[0.0], histogram.most[:-1]])[held]
    mixed = most <= _FREQUENT
    counts, rates = rows[~mixed], (looked_up / rows)[~mixed]
    if mixed.any():
        grid = _grid(float(most[mixed][-1]))
        weights = _weights(grid, least[mixed], most[mixed], rows[mixed], looked_up[mixed])
        weights *= looked_up[mixed].sum() / np.dot(weights, grid)
        weights, grid = _within(weights, grid, table_rows - counts.sum())
        counts, rates = np.concatenate([weights, counts]), np.concatenate([grid, rates])
    return Popularity(counts, counts * rates / np.dot(counts, rates))


def _grid(most: float) -> Floats:
    """Rates up to where counts hardly come out above the last bin."""
    low, top = np.log2(_RAREST), np.log2(most) - 0.5 / _PER_OCTAVE * (most > 1)
    return np.asarray(2.0 ** np.arange(top, low, -1.0 / _PER_OCTAVE)[::-1])


def _weights(grid: Floats, least: Floats, most: Floats, rows: Floats, looked_up: Floats) -> Floats:
    """Rows of each rate `[rates]`."""
    from scipy.optimize import nnls

    chance, mean = _expected(grid, least, most)
    system = np.concatenate([chance / rows[:, None], mean / looked_up[:, None]])
    unit = rows.sum()
    found: Floats = nnls(system * unit, np.ones(2 * len(rows)))[0] * unit
    return found


def _expected(grid: Floats, least: Floats, most: Floats) -> tuple[Floats, Floats]:
    """Chance that a Poisson count lies in each bin, and its mean there, both `[bins, rates]`.

    The mean of a count within limits is the rate times the chance of a count one lower.
    """

    def at_most(count: Floats) -> Floats:
        from scipy.special import gammaincc

        return np.where(count >= 0, gammaincc(np.maximum(count, 0.0) + 1.0, grid), 0.0)

    low, high = least[:, None], most[:, None]
    return at_most(high) - at_most(low), grid * (at_most(high - 1.0) - at_most(low - 1.0))


def _within(weights: Floats, rates: Floats, most_rows: float) -> tuple[Floats, Floats]:
    """The rarest rows joined into fewer and more popular ones, so that `most_rows` remain.

    `rates` ascending; lookups are kept.
    """
    surplus = weights.sum() - most_rows
    if surplus <= 0:
        return weights, rates
    rows = np.cumsum(weights) - surplus
    lookups = np.cumsum(weights * rates)
    beyond = np.append(rates[1:], np.inf)
    fits = (rows > 0) & (lookups <= rows * beyond)
    last = int(np.argmax(fits))
    return (
        np.concatenate([rows[last : last + 1], weights[last + 1 :]]),
        np.concatenate([lookups[last : last + 1] / rows[last], rates[last + 1 :]]),
    )
