"""Embedding tables and how their rows are accessed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfmodel.graph.lookups import Lookups

_EXACT_ROWS = 4_096
"""The most popular rows, summed one by one; the others are integrated."""
_PANELS = 96
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)


@dataclass(frozen=True, slots=True)
class Table:
    """One embedding table: `rows` of `dim` elements, and `pooling` lookups per sample on average.

    `alpha` is the exponent of the Zipf distribution of accesses, 0 where they are uniform. With
    `key_rows` a sample draws one key of so many, by `alpha`, and always the same rows come with the
    same key, spread evenly over the table (synthetic multi-hot data).
    """

    rows: int
    dim: int
    pooling: float = 1.0
    alpha: float = 0.0
    key_rows: int = 0

    def lookups(self, batch: int) -> int:
        """Rows that `batch` samples look up, repeats counted."""
        return max(1, round(batch * self.pooling))

    def unique_rows(self, batch: int) -> float:
        """Distinct rows expected among them."""
        if not self.key_rows:
            return expected_unique_rows(self.rows, self.alpha, self.lookups(batch))
        keys = expected_unique_rows(self.key_rows, self.alpha, batch)
        return expected_unique_rows(self.rows, 0.0, max(1, round(keys * self.pooling)))


def lookups(tables: Sequence[Table], batch: int) -> Lookups:
    """What `batch` samples look up in `tables`, with the distinct rows expected in each."""
    return Lookups(
        hash_size=tuple(table.rows for table in tables),
        dim=tuple(table.dim for table in tables),
        batch=(batch,) * len(tables),
        pooling=tuple(table.pooling for table in tables),
        unique_rows=tuple(table.unique_rows(batch) for table in tables),
        alpha=tuple(0.0 if table.key_rows else table.alpha for table in tables),
    )


@lru_cache(maxsize=1 << 16)
def expected_unique_rows(rows: int, alpha: float, lookups: int) -> float:
    """Expected distinct rows among `lookups` independent ones into a table of `rows`.

    Uniform (`alpha` 0): rows (1 - (1 - 1/rows)^lookups), exactly. Zipf: the same summed over rows
    of unequal probability, one by one for the most popular and by Gauss-Legendre quadrature on a
    logarithmic scale for the rest: within 0.1 % of the full sum.
    """
    if alpha == 0:
        return float(-rows * np.expm1(lookups * np.log1p(-1 / rows))) if rows > 1 else 1.0
    head = np.arange(1, min(rows, _EXACT_ROWS) + 1, dtype=np.float64)
    total = _touched(_probability(head, rows, alpha), lookups).sum()
    if rows > _EXACT_ROWS:
        edges = np.geomspace(_EXACT_ROWS + 1, rows + 1, _PANELS + 1)
        half = np.diff(edges)[:, None] / 2
        rank = (edges[:-1, None] + half) + half * _NODES - 0.5
        total += (_touched(_probability(rank, rows, alpha), lookups) * half * _WEIGHTS).sum()
    return float(total)


def popular_share(rows: int, alpha: float, most_popular: ArrayLike) -> NDArray[np.float64]:
    """Share of the lookups that go to the `most_popular` rows of a table of `rows`."""
    kept = np.clip(np.asarray(most_popular, np.float64), 0, rows)
    if alpha == 0:
        return kept / rows
    return _below(kept + 1, rows, alpha)


def rows_above(table: Table, probability: float) -> int:
    """How many of the most popular rows of `table` one lookup hits with at least `probability`."""
    if table.alpha == 0:
        return table.rows if 1 / table.rows >= probability else 0
    low, high = 0, table.rows
    while low < high:
        middle = (low + high + 1) // 2
        mine = float(_probability(np.array(float(middle)), table.rows, table.alpha))
        low, high = (middle, high) if mine >= probability else (low, middle - 1)
    return low


def _probability(rank: NDArray[np.float64], rows: int, alpha: float) -> NDArray[np.float64]:
    """Of the row of popularity `rank` (from 1): the integral of x^-alpha from rank to rank + 1."""
    return _below(rank + 1, rows, alpha) - _below(rank, rows, alpha)


def _below(x: NDArray[np.float64], rows: int, alpha: float) -> NDArray[np.float64]:
    if abs(alpha - 1) < 1e-9:
        return np.asarray(np.log(x) / np.log(rows + 1.0))
    power = 1 - alpha
    return np.asarray(np.expm1(power * np.log(x)) / np.expm1(power * np.log(rows + 1.0)))


def _touched(probability: NDArray[np.float64], lookups: int) -> NDArray[np.float64]:
    return np.asarray(-np.expm1(lookups * np.log1p(-np.minimum(probability, 1 - 1e-16))))
