"""What a rank has of tables whose rows are cut into equal parts: which share of every class.

Rows in the order of their popularity, cut in blocks: each part has what lies between its ends.
Popular rows anywhere: each row is on any of the ranks by chance, so that the busiest has more than
the mean; by how much is the expected maximum over ranks, each row that weighs drawn by itself, all
others as a normal deviation. Which rows make it the busiest: of ranks with that load the most
likely have row i with the odds `exp(tilt x weight)`, as large deviations come about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from perfmodel.base.arrays import Floats, Ints
from perfmodel.embedding.popularity import Popularity

DRAWS, SEED = 1000, 1
"""Of the expected maximum, which is then within 0.5 %."""
HEAVY_FRAC, MOST_HEAVY = 0.03, 1000
"""Rows with so much of a mean rank's load are drawn one by one, of a table so many at most."""
HALVINGS, STEEPEST, MOST_TILTED = 60, 1e4, 700.0
"""Of the tilt: up to where the busiest rank has every row of 1e-4 of all lookups; the logarithm of
the largest odds."""


def tilted_frac(popularity: Popularity, parts: int, tilt: float) -> Floats:
    """Share `[classes]` of the rows of each class on one of `parts` ranks to which rows fall by
    chance: the busiest with a `tilt` above 0; below it, each of the others beside one of as much; 0
    is the mean."""
    busiest = _busiest_frac(abs(tilt) * _beyond_mean(popularity), parts)
    return np.asarray(busiest if tilt >= 0 else (1.0 - busiest) / (parts - 1.0))


def _beyond_mean(popularity: Popularity) -> Floats:
    """The chance of a row of each class beyond a mean row's: parts have equally many rows."""
    return popularity.chance - 1.0 / popularity.total_rows


def _busiest_frac(tilted: Floats, parts: Ints | int) -> Floats:
    """That the busiest rank has a row; it is even with less than the mean row's lookups."""
    odds = np.exp(np.clip(tilted, 0.0, MOST_TILTED))
    return np.asarray(odds / (odds + parts - 1.0))


@dataclass(frozen=True)
class Scattered:
    """A table whose rows fall by chance to `ranks`, and what all its lookups weigh."""

    popularity: Popularity
    ranks: tuple[int, ...]
    weight: float


@lru_cache(maxsize=64)
def busiest_load(tables: tuple[Scattered, ...], mean: tuple[float, ...]) -> float:
    """The expected load of the busiest of the ranks with a part of any of `tables`, where `mean`
    `[ranks]` are the expected loads, everything in them."""
    generator = np.random.default_rng(SEED)
    load = np.zeros((DRAWS, len(mean)))
    by_ranks: dict[tuple[int, ...], list[Scattered]] = {}
    for table in tables:
        by_ranks.setdefault(table.ranks, []).append(table)
    least = HEAVY_FRAC * sum(mean) / len(mean)
    for ranks, own in by_ranks.items():
        parts, deviation, variance = len(ranks), np.zeros((DRAWS, len(ranks))), 0.0
        for table in own:
            rows = table.popularity.rows
            weight = table.weight * _beyond_mean(table.popularity)
            heavy = (weight >= least) & (np.cumsum(rows) <= MOST_HEAVY)
            single = np.repeat(weight[heavy], np.rint(rows[heavy]).astype(np.int64))
            place = generator.integers(parts, size=(DRAWS, len(single)))
            place += parts * np.arange(DRAWS)[:, None]
            drawn = np.broadcast_to(single, place.shape).ravel()
            found = np.bincount(place.ravel(), drawn, DRAWS * parts).reshape(DRAWS, parts)
            deviation += found - single.sum() / parts
            variance += float(np.dot(rows[~heavy], weight[~heavy] ** 2))
        normal = generator.standard_normal((DRAWS, parts))
        normal -= normal.mean(axis=1, keepdims=True)  # what one has, others have not
        load[:, list(ranks)] += deviation + normal * np.sqrt(variance / parts)
    load += np.array(mean) - load.mean(axis=0)
    holders = sorted({rank for ranks in by_ranks for rank in ranks})
    return float(load[:, holders].max(axis=1).mean())


def tilts(tables: Sequence[Scattered], excess: float) -> list[float]:
    """Per table the tilt under which a rank with a part of each has so much load more than the
    mean, by halving."""
    lookups = np.concatenate([t.popularity.share * t.weight for t in tables])
    beyond = np.concatenate([_beyond_mean(t.popularity) * t.weight for t in tables])
    parts = np.repeat([len(t.ranks) for t in tables], [len(t.popularity.rows) for t in tables])
    low, high = 0.0, STEEPEST * MOST_TILTED / max(float(lookups.sum()), 1e-300)
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        more = np.dot(lookups, _busiest_frac(middle * beyond, parts) - 1.0 / parts)
        low, high = (middle, high) if more < excess else (low, middle)
    return [low * table.weight for table in tables]
