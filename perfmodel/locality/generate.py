"""Index streams to replay or to feed to a benchmark; the same seed gives the same stream."""

from __future__ import annotations

import math

import numpy as np

from perfmodel.errors import WorkloadError
from perfmodel.locality.histogram import ReuseHistogram
from perfmodel.locality.popularity import Popularity
from perfmodel.locality.stack import Ints


def draw_lookups(
    popularity: Popularity, lookups: int, *, seed: int = 0, scattered: bool = True
) -> Ints:
    """So many independent lookups, row numbers `[lookups]` from 0.

    `scattered` over the table, as popular rows are in a real one; else row 0 is the most popular.
    The rows of a class are taken alike.
    """
    if lookups < 1:
        raise WorkloadError(f"index stream: {lookups} lookups")
    generator = np.random.default_rng(seed)
    ends = np.cumsum(popularity.rows)
    mass = np.cumsum(popularity.share)
    place = np.searchsorted(mass / mass[-1], generator.random(lookups), side="right")
    place = np.minimum(place, len(ends) - 1)
    rank = ends[place] - generator.random(lookups) * popularity.rows[place]
    count = max(1, round(float(ends[-1])))
    found = np.clip(rank.astype(np.int64), 0, count - 1)
    return scatter(found, count) if scattered else found


def last_lookups(popularity: Popularity, *, seed: int = 0, scattered: bool = True) -> Ints:
    """Every row that is ever looked up once, by when it would have been last: `[rows]`.

    Put before `draw_lookups`, it fills an LRU cache as an endless stream would have left it.
    """
    generator = np.random.default_rng(seed)
    ends = np.cumsum(popularity.rows)
    count = max(1, round(float(ends[-1])))
    place = np.searchsorted(ends, np.arange(count) + 0.5, side="right")
    chance = popularity.chance[np.minimum(place, len(ends) - 1)]
    used = np.flatnonzero(chance > 0)
    ages = generator.exponential(size=len(used)) / chance[used]
    found = used[np.argsort(-ages, kind="stable")]
    return scatter(found, count) if scattered else found


def draw_like(histogram: ReuseHistogram, rows_frac: float = 1.0, *, seed: int = 0) -> Ints:
    """A batch with the reuse of `histogram`, its lookups in random order, row numbers from 0.

    `rows_frac` of the rows of each bin (rounded), each looked up as often as there; the lookups of
    a bin come out within one row's worth of theirs.
    """
    if not 0.0 < rows_frac <= 1.0:
        raise WorkloadError(f"index stream: {rows_frac:g} of the rows of a histogram")
    generator = np.random.default_rng(seed)
    counts = np.concatenate([_counts(histogram, place, rows_frac) for place in _bins(histogram)])
    if not len(counts):
        raise WorkloadError(f"index stream: {rows_frac:g} of {histogram.name!r} are no rows")
    generator.shuffle(counts)
    stream = np.repeat(np.arange(len(counts)), counts)
    generator.shuffle(stream)
    return stream


def scatter(ranks: Ints, rows: int) -> Ints:
    """Row numbers of popularity ranks (from 0): multiples of a step without a common divisor."""
    step = max(1, int(rows * 0.6180339887))
    while math.gcd(step, rows) != 1:
        step += 1
    return np.asarray(ranks * step % rows, dtype=np.int64)


def _bins(histogram: ReuseHistogram) -> Ints:
    return np.flatnonzero(histogram.rows > 0)


def _counts(histogram: ReuseHistogram, place: int, rows_frac: float) -> Ints:
    """How often each row of one bin is looked up: spread evenly about the bin's mean."""
    rows = round(float(histogram.rows[place]) * rows_frac)
    least = (histogram.most[place - 1] if place else 0.0) + 1.0
    most = histogram.most[place]
    mean = histogram.bin_lookups[place] / histogram.rows[place]
    reach = min(mean - least, most - mean)
    steps = (np.arange(rows) + 0.5) / max(rows, 1)
    ends = np.round(np.cumsum(mean + reach * (2.0 * steps - 1.0))).astype(np.int64)
    counts = np.diff(ends, prepend=0)
    return np.clip(counts, int(least), int(most))
