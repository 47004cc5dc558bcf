"""What a micro-batch looks up of hot rows and of others, from the tables' popularity."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from perfmodel.graph.lookups import Lookups
from perfmodel.locality import mixed_hot_frac, parted, zipf_alpha_of
from perfmodel.placement import Pipeline
from perfmodel.workload.tables import Table
from perfmodel.workload.tiered.source import Group

_LEAST = 0.5
"""Fewer rows than this are none."""


@dataclass(frozen=True)
class HotUse:
    """Of a micro-batch, per table: hot rows that there are, distinct ones among its lookups;
    distinct other rows."""

    rows: tuple[int, ...]
    hot: tuple[float, ...]
    other: tuple[float, ...]

    @property
    def distinct_hot(self) -> int:
        """Of all tables."""
        return max(round(sum(self.hot)), 1)

    @property
    def fetched(self) -> int:
        """Other rows, of all tables, which come from where all rows are."""
        total = sum(self.other)
        return 0 if total < _LEAST else max(round(total), 1)


def largest_use(group: Group) -> HotUse:
    """Of all micro-batches of the step, the one that fetches most."""
    run = group.run
    parts = (run.pipeline or Pipeline()).micro_batches
    found = []
    for part in parts:
        samples = max(round(run.batch * part.samples_frac), 1)
        found.append(hot_use(group.of_samples(replace(run, batch=samples, micro_batch=part))))
    return max(found, key=lambda use: use.fetched)


def hot_use(group: Group) -> HotUse:
    """Of the samples of `group.run.micro_batch`; samples that are not popular have the hot lookups
    that the popular ones of the pipeline leave.

    Raises `WorkloadError` for more popular samples than the hot rows allow.
    """
    popular = 1.0
    if not group.run.micro_batch.popular:
        pipeline = group.run.pipeline or Pipeline()
        popular = sum(each.samples_frac for each in pipeline.micro_batches if each.popular)
    pairs = list(zip(group.tables, group.hot_rows, strict=True))
    share = np.array([float(table.popularity().covered_frac(rows)) for table, rows in pairs])
    hot_frac = (
        np.ones_like(share) if group.run.micro_batch.popular else mixed_hot_frac(share, popular)
    )
    found = [
        _distinct(table, rows, group.samples * table.pooling, frac)
        for (table, rows), frac in zip(pairs, hot_frac.tolist(), strict=True)
    ]
    hot, other = zip(*found, strict=True)
    return HotUse(group.hot_rows, hot, other)


@lru_cache(maxsize=1 << 14)
def _distinct(table: Table, rows: int, lookups: float, hot_frac: float) -> tuple[float, float]:
    hot, other = parted(table.popularity(), rows)
    return (
        float(hot.distinct_rows(lookups * hot_frac)) if hot else 0.0,
        float(other.distinct_rows(lookups * (1.0 - hot_frac))) if other else 0.0,
    )


def looked_up(group: Group, use: HotUse) -> Lookups:
    """The lookups into hot rows and those that were fetched beside them, as one operator's."""
    tables = group.tables
    pairs = list(zip(use.hot, use.other, strict=True))
    room = zip(use.rows, use.other, strict=True)
    held = tuple(max(rows + round(other), 1) for rows, other in room)
    counts = [table.lookups(group.samples) for table in tables]
    distinct = tuple(
        min(max(hot + other, 1.0), rows, count)
        for (hot, other), rows, count in zip(pairs, held, counts, strict=True)
    )
    return Lookups(
        hash_size=held,
        dim=tuple(table.dim for table in tables),
        batch=(group.samples,) * len(tables),
        pooling=tuple(table.pooling for table in tables),
        unique_rows=distinct,
        alpha=tuple(zipf_alpha_of(held, counts, distinct).tolist()),
    )
