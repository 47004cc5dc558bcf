"""Embedding tables: how their rows are accessed, and the bytes of a row and its state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.schema import Limits
from perfmodel.embedding.cache import TableAccess
from perfmodel.embedding.popularity import Popularity, uniform, zipf, zipf_alpha_of
from perfmodel.ops.lookups import Lookups
from perfmodel.ops.spec import CPU_ALIGNMENT_BYTES
from perfmodel.ops.spec import row_bytes as stored_row_bytes

Histogram = Annotated[tuple[tuple[float, float], ...], Limits(1e-15, 1e9)]


@dataclass(frozen=True, slots=True)
class Table:
    """One embedding table: `rows` of `dim` elements, and `pooling` lookups per sample on average.

    `alpha` is the exponent of the Zipf distribution of accesses, 0 where they are uniform. With
    `key_rows` a sample draws one key of so many, by `alpha`, and always the same rows come with the
    same key, spread evenly over the table (synthetic multi-hot data). `histogram`, in place of
    `alpha`, lists classes of rows as pairs of shares: of the lookups, and of the rows that these go
    to, evenly. `ids`: popular rows are anywhere in the table (`scattered`), or row numbers are in
    the order of popularity, the most popular first, as of vocabularies sorted by frequency. Rows of
    a table that is not `pooled` are given one by one: as of a sequence.
    """

    rows: Annotated[int, Limits(1, 1e13)]
    dim: Annotated[int, Limits(1, 1e5)]
    pooling: Annotated[float, Limits(1e-3, 1e6)] = 1.0
    alpha: Annotated[float, Limits(0, 10)] = 0.0
    key_rows: Annotated[int, Limits(0, 1e13)] = 0
    histogram: Histogram = ()
    ids: Literal["scattered", "by_popularity"] = "scattered"
    pooled: bool = True

    @property
    def width(self) -> float:
        """Values that a sample gets of it."""
        return self.dim * (1.0 if self.pooled else self.pooling)

    def lookups(self, batch: int) -> int:
        """Rows that `batch` samples look up, repeats counted."""
        return max(1, round(batch * self.pooling))

    def unique_rows(self, batch: int) -> float:
        """Distinct rows expected among them, as independent lookups touch them (uniform: exactly;
        Zipf: within 0.1 % of the sum over all rows)."""
        if not self.key_rows:
            return _unique_rows(self.popularity(), self.lookups(batch))
        keys = _unique_rows(_popularity(self.key_rows, self.alpha, self.histogram), batch)
        evenly = _popularity(self.rows, 0.0, ())
        return _unique_rows(evenly, max(1, round(keys * self.pooling)))

    def access(self, lookups: float, row_bytes: float) -> TableAccess:
        """So many lookups of it, as a cache of rows of `row_bytes` sees them."""
        return TableAccess(popularity=self.popularity(), lookups=lookups, row_bytes=row_bytes)

    def popularity(self) -> Popularity:
        """How often each row is looked up, in classes, for the caches of `perfmodel.embedding`.

        With keys, the k most popular ones bring so many different rows as were drawn evenly, and
        beside their own lookups these get an even part of all others.
        """
        if not self.key_rows:
            return _popularity(self.rows, self.alpha, self.histogram)
        return _popularity_by_key(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part(Table):
    """A row-wise part of a table, its `pooling` that of its share of the lookups; `classes`: how
    often each of its rows is looked up. By `excess_frac` it has more lookups than the mean part,
    for a few popular rows: no more distinct ones."""

    classes: Popularity
    excess_frac: float = 0.0

    def unique_rows(self, batch: int) -> float:
        lookups = max(1, round(self.lookups(batch) / (1.0 + self.excess_frac)))
        return _unique_rows(self.classes, lookups)

    def popularity(self) -> Popularity:
        return self.classes


@lru_cache(maxsize=1 << 14)
def row_wise_part(table: Table, parts: int, block: int | None, excess_frac: float) -> Part:
    """One of `parts` equal parts of `table`: of rows in the order of popularity the `block` of that
    number, where the last ones are empty the last row; else of rows that lie anywhere."""
    whole, rows = table.popularity(), -(-table.rows // parts)
    frac = np.full(len(whole.rows), 1.0 / parts)
    if block is not None:
        begin = min(block * rows, table.rows - 1)
        frac = whole.held_frac(begin, begin + rows)
    about = {each.name: getattr(table, each.name) for each in fields(table)}
    about["pooling"] *= float(np.dot(frac, whole.share)) * (1.0 + excess_frac)
    return Part(**about | {"rows": rows}, classes=whole.part(frac), excess_frac=excess_frac)


@lru_cache(maxsize=1 << 10)
def _popularity_by_key(table: Table) -> Popularity:
    keys = _popularity(table.key_rows, table.alpha, table.histogram)
    brought = np.cumsum(keys.rows) * table.pooling
    rows_frac = -np.expm1(-np.append(0.0, brought) / table.rows)
    rows_frac[-1] = 1.0
    mass = np.append(0.0, np.cumsum(keys.share))
    covered = mass + (1.0 - mass) * rows_frac
    distinct = np.diff(rows_frac) > 0
    share = np.diff(covered)[distinct]
    return Popularity(np.diff(rows_frac)[distinct] * table.rows, share / share.sum())


@lru_cache(maxsize=1 << 12)
def distinct_in_parts(table: Table, lookups: int, part: int, count: int) -> NDArray[np.float64]:
    """Distinct rows expected of `lookups`, of one in `part` of them, and so on: `count` numbers."""
    return table.popularity().distinct_rows(lookups / float(part) ** np.arange(count))


def lookups(tables: Sequence[Table], batch: int) -> Lookups:
    """What `batch` samples look up in `tables`, with the distinct rows expected in each."""
    return Lookups(
        hash_size=tuple(table.rows for table in tables),
        dim=tuple(table.dim for table in tables),
        batch=(batch,) * len(tables),
        pooling=tuple(table.pooling for table in tables),
        unique_rows=tuple(table.unique_rows(batch) for table in tables),
        alpha=tuple(_equivalent_alpha(table, batch) for table in tables),
        most_repeated=tuple(t.lookups(batch) * float(t.popularity().chance[0]) for t in tables),
    )


@lru_cache(maxsize=1 << 10)
def lookup_attributes(tables: tuple[Table, ...], batch: int) -> dict[str, str]:
    """The same as attributes of an op, not to be changed."""
    return lookups(tables, batch).to_attributes()


def _equivalent_alpha(table: Table, batch: int) -> float:
    """The exponent for whoever knows only of such: with a histogram, that of as many rows."""
    if table.key_rows or not table.histogram:
        return 0.0 if table.key_rows else table.alpha
    return float(zipf_alpha_of(table.rows, table.lookups(batch), table.unique_rows(batch)))


@lru_cache(maxsize=1 << 16)
def _unique_rows(popularity: Popularity, lookups: int) -> float:
    return float(popularity.distinct_rows(lookups))


@lru_cache(maxsize=1 << 10)
def _popularity(rows: int, alpha: float, histogram: Histogram) -> Popularity:
    if not histogram:
        return zipf(rows, alpha, smooth=True) if alpha else uniform(rows)
    share, rows_frac = np.array(histogram).T
    return Popularity(rows_frac / rows_frac.sum() * rows, share / share.sum())


FP32_BYTES = 4
STATES = {"sgd": 0, "adagrad": 1, "adam": 2, "rowwise_adagrad": 0}
"""Tensors of a parameter's own shape that each optimizer keeps of it."""


def row_bytes(table: Table, dtype: str) -> float:
    """Bytes of a row as a host stores it, the optimizer's state apart."""
    return float(stored_row_bytes(dtype, table.dim, alignment_bytes=CPU_ALIGNMENT_BYTES))


def state_bytes(table: Table, optimizer: str) -> float:
    """Bytes of the optimizer's state of one row."""
    if optimizer == "rowwise_adagrad":
        return FP32_BYTES
    return FP32_BYTES * table.dim * STATES[optimizer]


def total_lookups(tables: Sequence[Table], batch: int) -> int:
    """Rows that `batch` samples look up in all `tables`."""
    return sum(table.lookups(batch) for table in tables)


def mean_length(tables: Sequence[Table]) -> float:
    """Positions of a mean sequence, contextual ones among them."""
    return max(table.pooling for table in tables) + sum(table.pooling <= 1 for table in tables)
