"""The rows worth keeping close, of all tables within one budget, and which samples need no other.

Lookups, of one sample too, are independent. Where rows that are popular come together, more samples
have only hot rows than is said here, at the same share of lookups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfmodel.arrays import Floats
from perfmodel.embedding.cache import TableAccess, per_table, shared_classes
from perfmodel.embedding.policies import RowClasses, poisson_above_frac
from perfmodel.embedding.popularity import Popularity
from perfmodel.errors import WorkloadError

_STEPS = 100
_SAME_FRAC = 1e-12
"""Counts per byte of rows of several sizes are one, where they differ by no more."""


@dataclass(frozen=True, eq=False, kw_only=True)
class HotSet:
    """Hot rows per table, `[tables]`, and what share `hot_frac` of the table's lookups they get.

    `lookups` are those of one sample, `row_bytes` what a row takes of the budget.
    """

    name: tuple[str, ...]
    lookups: Floats
    row_bytes: Floats
    rows: Floats
    hot_frac: Floats

    @property
    def used_bytes(self) -> float:
        """What the hot rows take."""
        return float(np.dot(self.rows, self.row_bytes))

    @property
    def overall_hot_frac(self) -> float:
        """Share of all lookups that go to hot rows."""
        return float(np.dot(self.hot_frac, self.lookups) / self.lookups.sum())

    @property
    def popular_frac(self) -> float:
        """Share of the samples all of whose rows are hot.

        Source: FAE (Adnan et al., VLDB 2022): an input is hot only if all its rows are.
        """
        with np.errstate(divide="ignore"):
            return float(np.exp(np.dot(self.lookups, np.log(self.hot_frac))))

    def mixed_hot_frac(self, popular_frac: float | None = None) -> Floats:
        """Share of the lookups of all other samples that go to hot rows, `[tables]`.

        `popular_frac` of the samples are popular, by default as many as independent lookups make;
        whatever they are, none of their lookups goes elsewhere. Raises `WorkloadError` for more
        than the tables' hot lookups allow.
        """
        share = self.popular_frac if popular_frac is None else popular_frac
        return mixed_hot_frac(self.hot_frac, share)


def mixed_hot_frac(hot_frac: Floats, popular_frac: float) -> Floats:
    """Share of the lookups of samples that are not popular that go to hot rows, `[tables]`.

    `hot_frac` `[tables]` is that of all samples, of which `popular_frac` look up nothing else.
    Raises `WorkloadError` for more popular samples than that allows.
    """
    most = float(hot_frac.min())
    if not 0.0 <= popular_frac <= most * (1.0 + 1e-9):
        raise WorkloadError(
            f"hot rows: a share of {popular_frac:g} of popular samples, and only {most:g} of one "
            f"table's lookups are hot"
        )
    if popular_frac >= 1.0:
        return np.ones_like(hot_frac)
    return np.clip((hot_frac - popular_frac) / (1.0 - popular_frac), 0.0, 1.0)


def hot_set(
    tables: Sequence[TableAccess], budget_bytes: float, *, sampled: float = np.inf
) -> HotSet:
    """The hot rows of `tables`, whose lookups are those of one sample, that `budget_bytes` hold.

    Of all tables together those with most lookups per byte. They are known beforehand, or by their
    counts in `sampled` samples: a row is looked up so often by chance, a Poisson variable, and part
    of the rows at the least count that still fits are taken.

    Raises `WorkloadError` for a budget or a sample that cannot be.
    """
    if not budget_bytes >= 0:
        raise WorkloadError(f"hot rows: a budget of {budget_bytes:g} bytes")
    if not sampled > 0:
        raise WorkloadError(f"hot rows: learned on {sampled:g} samples")
    classes, owner = shared_classes(tables)
    if np.isinf(sampled):
        kept = classes.best_kept_frac(classes.rate / classes.row_bytes, budget_bytes)
    else:
        kept = _learned(tables, budget_bytes, sampled)
    share = np.concatenate([table.popularity.share for table in tables])
    return HotSet(
        name=tuple(table.name for table in tables),
        lookups=np.array([table.lookups for table in tables], np.float64),
        row_bytes=np.array([table.row_bytes for table in tables], np.float64),
        rows=per_table(owner, kept * classes.rows, tables),
        hot_frac=np.clip(per_table(owner, kept * share, tables), 0.0, 1.0),
    )


def split_hot(
    popularity: Popularity, hot_rows: float
) -> tuple[Popularity | None, Popularity | None]:
    """The `hot_rows` most popular rows, and all others, each as a table of its own; None without
    lookups."""
    ends = np.cumsum(popularity.rows)
    hot = np.clip(hot_rows - (ends - popularity.rows), 0.0, popularity.rows)
    share = popularity.chance * hot
    return _part(hot, share), _part(popularity.rows - hot, popularity.share - share)


def _part(rows: Floats, share: Floats) -> Popularity | None:
    held = rows > 0
    share = np.maximum(share[held], 0.0)
    return Popularity(rows[held], share / share.sum()) if share.sum() > 0 else None


def _learned(tables: Sequence[TableAccess], budget_bytes: float, sampled: float) -> Floats:
    """What is kept of each class of all `tables`; equal tables are counted once."""
    keys = [(id(table.popularity), table.lookups, table.row_bytes) for table in tables]
    kinds = dict(zip(keys, tables, strict=True))
    alike = Counter(keys)
    one, owner = shared_classes(list(kinds.values()))
    times = np.array([alike[key] for key in kinds], np.float64)[owner]
    expected = one.rate * sampled * sum(table.lookups for table in kinds.values())
    kept = _counted(replace(one, rows=one.rows * times), budget_bytes, expected)
    ends = np.cumsum(np.bincount(owner))[:-1]
    by_kind = dict(zip(kinds, np.split(kept, ends), strict=True))
    return np.concatenate([by_kind[key] for key in keys])


def _counted(classes: RowClasses, budget_bytes: float, expected: Floats) -> Floats:
    """The chance that a row's count per byte is above the least that fits, and a part of those at
    it.

    Halves what lies between two counts per byte, from twice and half the one that would fit if
    counts were as expected; only classes whose chance differs between the two are computed again.
    """
    sizes, used = np.unique(classes.row_bytes), classes.used_bytes
    low, many = 0.0, poisson_above_frac(expected, 0.0)
    if np.dot(used, many) <= budget_bytes:
        return many
    per_byte = expected / classes.row_bytes
    high = float(np.max((expected + 12.0 * np.sqrt(expected) + 64.0) / classes.row_bytes))
    few = poisson_above_frac(expected, high * classes.row_bytes)
    kept = classes.best_kept_frac(per_byte, budget_bytes)
    around = 2.0 * float(per_byte[kept > 0].min(initial=high))
    for step in range(_STEPS):
        count = np.floor(low * sizes)
        between, following = np.floor(high * sizes) - count, (count + 1.0) / sizes
        if between.max() <= 1.0 and np.ptp(following[between > 0]) <= _SAME_FRAC * high:
            break
        middle = around / 4.0**step if step < 2 and low < around / 4.0**step < high else 0.0
        middle = middle or (low + high) / 2
        open_ = np.flatnonzero(many != few)
        chance = many.copy()
        chance[open_] = poisson_above_frac(expected[open_], middle * classes.row_bytes[open_])
        if np.dot(used, chance) <= budget_bytes:
            high, few = middle, chance
        else:
            low, many = middle, chance
    needed = float(np.dot(used, many - few))
    room = budget_bytes - float(np.dot(used, few))
    return np.asarray(few + (min(room / needed, 1.0) if needed > 0 else 0.0) * (many - few))
