"""One cache for the rows of several tables: what it finds, in closed form and by exact replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.arrays import Floats, Ints, Mask
from perfmodel.embedding.policies import Lru, Policy, RowClasses
from perfmodel.embedding.popularity import Popularity
from perfmodel.errors import WorkloadError

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True)
class TableAccess:
    """How one batch looks up one table: so many `lookups` (repeats counted) of rows of `row_bytes`.

    `row_bytes` is what a row takes of the cache: in a GPU's L2 whole sectors, in a software cache
    the slot.
    """

    popularity: Popularity
    lookups: float
    row_bytes: float
    name: str = ""

    def __post_init__(self) -> None:
        if not (self.lookups > 0 and np.isfinite(self.lookups)):
            raise WorkloadError(f"table {self.name!r}: {self.lookups:g} lookups per batch")
        if not (self.row_bytes > 0 and np.isfinite(self.row_bytes)):
            raise WorkloadError(f"table {self.name!r}: rows of {self.row_bytes:g} bytes")


@dataclass(frozen=True)
class Cache:
    """A cache of `capacity_bytes` for rows, with one replacement policy."""

    capacity_bytes: float
    policy: Policy = field(default_factory=Lru)

    def __post_init__(self) -> None:
        if not self.capacity_bytes >= 0:
            raise WorkloadError(f"a cache of {self.capacity_bytes:g} bytes")


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class CacheUse:
    """What one batch finds in a cache, per table `[tables]`.

    `hit_frac` is the share of the table's lookups that find their row. `distinct_rows` are those
    of the batch, `fetched_rows` how often a row is brought in: in steady state the distinct rows
    that are not there when the batch begins, for a first batch every miss. `cached_rows` are what
    the cache holds of the table.
    """

    name: tuple[str, ...]
    lookups: Floats
    row_bytes: Floats
    hit_frac: Floats
    distinct_rows: Floats
    fetched_rows: Floats
    cached_rows: Floats

    @property
    def overall_hit_frac(self) -> float:
        """Share of all lookups, of all tables, that find their row."""
        return float(np.dot(self.hit_frac, self.lookups) / self.lookups.sum())

    @property
    def distinct_hit_frac(self) -> Floats:
        """Share of each table's distinct rows that need not be fetched."""
        return np.asarray(1.0 - self.fetched_rows / np.maximum(self.distinct_rows, 1e-300))

    @property
    def fetched_bytes(self) -> Floats:
        """What is brought in for one batch."""
        return self.fetched_rows * self.row_bytes

    def to_frame(self) -> pd.DataFrame:
        import pandas as pd

        return pd.DataFrame({part.name: getattr(self, part.name) for part in fields(self)})

    def __repr__(self) -> str:
        return (
            f"CacheUse({len(self.name)} tables, {self.overall_hit_frac:.1%} of "
            f"{self.lookups.sum():.6g} lookups hit, {self.fetched_bytes.sum():.6g} bytes fetched)"
        )

    def _repr_html_(self) -> str:
        from perfmodel.plot import table_html

        columns = [part.name for part in fields(self)]
        rows = zip(*(getattr(self, name) for name in columns), strict=True)
        return table_html(rows, columns, f"{self.overall_hit_frac:.1%} of the lookups hit")


def steady_use(tables: Sequence[TableAccess], cache: Cache) -> CacheUse:
    """What a batch finds after many like it, in a cache that all `tables` share.

    Lookups are independent, and lookups of different tables mix evenly. Raises `WorkloadError`
    where there is no table.
    """
    classes, owner = shared_classes(tables)
    kept = cache.policy.residency(classes, cache.capacity_bytes)
    total = sum(table.lookups for table in tables)
    touched = classes.touched_rows(total)
    hits, fetched = total * classes.rows * classes.rate * kept, touched * (1.0 - kept)
    return _use(tables, owner, hits, touched, fetched, kept * classes.rows)


def first_batch_use(tables: Sequence[TableAccess], cache: Cache) -> CacheUse:
    """What a batch finds in a cache that held none of its rows when it began."""
    classes, owner = shared_classes(tables)
    total = sum(table.lookups for table in tables)
    looked_up, touched = total * classes.rows * classes.rate, classes.touched_rows(total)
    missed = cache.policy.first_batch_misses(classes, cache.capacity_bytes, total)
    missed = np.clip(missed, touched, np.maximum(touched, looked_up))
    kept = cache.policy.residency(classes, cache.capacity_bytes) * classes.rows
    return _use(tables, owner, looked_up - missed, touched, missed, np.minimum(kept, touched))


def shared_classes(tables: Sequence[TableAccess]) -> tuple[RowClasses, Ints]:
    """Classes of all tables one after the other, and the number of each class's table."""
    if not tables:
        raise WorkloadError("a cache without tables")
    total = sum(table.lookups for table in tables)
    sizes = [len(table.popularity.rows) for table in tables]
    return RowClasses(
        rows=np.concatenate([table.popularity.rows for table in tables]),
        rate=np.concatenate([t.popularity.chance * (t.lookups / total) for t in tables]),
        row_bytes=np.repeat([table.row_bytes for table in tables], sizes),
    ), np.repeat(np.arange(len(tables)), sizes)


def per_table(owner: Ints, values: Floats, tables: Sequence[TableAccess]) -> Floats:
    """Sums over the classes of each table."""
    return np.bincount(owner, values, minlength=len(tables)).astype(np.float64)


def _use(tables: Sequence[TableAccess], owner: Ints, hits: Floats, *parts: Floats) -> CacheUse:
    """`parts` per class: distinct rows, fetched rows, cached rows."""
    lookups = np.array([table.lookups for table in tables], np.float64)
    distinct, fetched, cached = (per_table(owner, part, tables) for part in parts)
    return CacheUse(
        name=tuple(table.name for table in tables),
        lookups=lookups,
        row_bytes=np.array([table.row_bytes for table in tables], np.float64),
        hit_frac=np.clip(per_table(owner, hits, tables) / lookups, 0.0, 1.0),
        distinct_rows=distinct,
        fetched_rows=fetched,
        cached_rows=cached,
    )


@dataclass(frozen=True, eq=False)
class Replayed:
    """A replay: which lookups found their row `[lookups]`, and per batch `[batches]` the rest.

    `distinct_rows` of each batch, and `fetched_rows`, those of them that were not in the cache when
    the batch began.
    """

    found: Mask
    distinct_rows: Ints
    fetched_rows: Ints

    @property
    def hit_frac(self) -> float:
        """Share of the lookups that found their row."""
        return float(self.found.mean())

    @property
    def distinct_hit_frac(self) -> float:
        """Share of the batches' distinct rows that were not fetched."""
        return float(1.0 - self.fetched_rows.sum() / self.distinct_rows.sum())


def replay(
    rows: Ints, capacity_rows: int, policy: Policy, *, batch_lookups: int = 1, warm_up: int = 0
) -> Replayed:
    """Replay `rows` `[lookups]` through an empty cache of so many rows.

    What counts is what the cache holds when a batch of `batch_lookups` begins; it takes in the
    batch lookup by lookup. The first `warm_up` lookups are not counted; batches begin after them,
    and an incomplete last one is left out.
    """
    if capacity_rows < 0 or batch_lookups < 1 or not 0 <= warm_up < len(rows):
        raise WorkloadError(
            f"replay: {capacity_rows} rows, batches of {batch_lookups}, warm-up of {warm_up} of "
            f"{len(rows)} lookups"
        )
    batches = (len(rows) - warm_up) // batch_lookups
    if not batches:
        raise WorkloadError(f"replay: less than one batch of {batch_lookups} lookups")
    rows = rows[: warm_up + batches * batch_lookups]
    step = np.maximum(np.arange(len(rows)) - warm_up, -1) // batch_lookups + 1
    hits = policy.hits(rows, capacity_rows, step)[warm_up:]
    counted, number = rows[warm_up:], step[warm_up:] - 1
    order = np.lexsort((counted, number))
    first = np.ones(len(order), bool)
    first[1:] = (np.diff(counted[order]) != 0) | (np.diff(number[order]) != 0)
    chosen = order[first]
    return Replayed(
        found=hits,
        distinct_rows=np.bincount(number[chosen], minlength=batches),
        fetched_rows=np.bincount(number[chosen][~hits[chosen]], minlength=batches),
    )
