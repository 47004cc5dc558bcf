"""Drawn streams that replays and fits start from: warm caches, given reuse."""

from __future__ import annotations

import numpy as np

from perfmodel.base.arrays import Ints
from perfmodel.embedding import Popularity, ReuseHistogram
from perfmodel.embedding.index_streams import scatter
from perfmodel.errors import WorkloadError


def last_lookups(popularity: Popularity, *, seed: int = 0) -> Ints:
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
    return scatter(used[np.argsort(-ages, kind="stable")], count)


def draw_like(histogram: ReuseHistogram, rows_frac: float = 1.0, *, seed: int = 0) -> Ints:
    """A batch with the reuse of `histogram`, its lookups in random order, row numbers from 0.

    `rows_frac` of the rows of each bin (rounded), each looked up as often as there, spread evenly
    about the bin's mean; the lookups of a bin come out within one row's worth of theirs.
    """
    if not 0.0 < rows_frac <= 1.0:
        raise WorkloadError(f"index stream: {rows_frac:g} of the rows of a histogram")
    generator = np.random.default_rng(seed)
    counts = [np.zeros(0, np.int64)]
    columns = histogram.rows, histogram.bin_lookups, histogram.least + 1.0, histogram.most
    for rows, looked_up, least, most in np.stack(columns, axis=1)[histogram.rows > 0].tolist():
        mean, kept = looked_up / rows, round(rows * rows_frac)
        steps = 2.0 * (np.arange(kept) + 0.5) / max(kept, 1) - 1.0
        ends = np.round(np.cumsum(mean + min(mean - least, most - mean) * steps)).astype(np.int64)
        counts.append(np.clip(np.diff(ends, prepend=0), int(least), int(most)))
    of_row = np.concatenate(counts)
    if not len(of_row):
        raise WorkloadError(
            f"index stream: {rows_frac:g} of {histogram.name!r} are not row numbers"
        )
    generator.shuffle(of_row)
    stream = np.repeat(np.arange(len(of_row)), of_row)
    generator.shuffle(stream)
    return stream
