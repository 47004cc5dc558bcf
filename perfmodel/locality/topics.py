"""Queries that share rows because they are about the same things."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.errors import WorkloadError
from perfmodel.locality.generate import draw_lookups
from perfmodel.locality.popularity import Popularity
from perfmodel.locality.reorder import Queries


@dataclass(frozen=True)
class Topics:
    """Of a batch: each query is about one of `count` topics, each of `rows` rows drawn by their
    popularity; the share `affinity_frac` of its lookups goes to them, evenly."""

    count: int
    rows: int
    affinity_frac: float

    def __post_init__(self) -> None:
        if self.count < 1 or self.rows < 1 or not 0.0 <= self.affinity_frac <= 1.0:
            raise WorkloadError(
                f"topics: {self.count} of {self.rows} rows, affinity {self.affinity_frac:g}"
            )


def draw_queries(
    popularity: Popularity,
    queries: int,
    lookups: int,
    *,
    topics: Topics | None = None,
    seed: int = 0,
) -> Queries:
    """A batch of `queries` of so many `lookups` each, in random order.

    Every row is looked up as often as its popularity says, with topics or without: what these
    change is which rows come together.
    """
    if queries < 1 or lookups < 1:
        raise WorkloadError(f"queries: {queries} of {lookups} lookups")
    rows = draw_lookups(popularity, queries * lookups, seed=seed)
    if topics is not None:
        generator = np.random.default_rng([seed, 1])
        about = draw_lookups(popularity, topics.count * topics.rows, seed=seed + 7919)
        about = about.reshape(topics.count, topics.rows)
        topic = np.repeat(generator.integers(topics.count, size=queries), lookups)
        shared = about[topic, generator.integers(topics.rows, size=len(rows))]
        rows = np.where(generator.random(len(rows)) < topics.affinity_frac, shared, rows)
    return Queries(np.arange(0, len(rows) + 1, lookups), rows)
