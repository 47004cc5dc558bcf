"""The reuse of a batch of which only its size is known, after batches of which more is."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from perfmodel.errors import WorkloadError
from perfmodel.locality.histogram import ReuseHistogram
from perfmodel.locality.popularity import Popularity


def borrowed(
    histograms: Iterable[ReuseHistogram], lookups: float, distinct_rows: float
) -> Popularity:
    """The popularity within a batch of so many `lookups` of so many `distinct_rows`.

    The histogram nearest in lookups lends its shape: as many of the rows to each of its bins, and
    the lookups that a row has beyond its first grow in all bins alike, so that those of the batch
    come out. As `ReuseHistogram.popularity`, it knows no rows but those of the batch.

    Raises `WorkloadError` where there is no histogram, where no row of the nearest is looked up
    twice, or where there are more rows than lookups.
    """
    known = list(histograms)
    if not known:
        raise WorkloadError("borrowed: no reuse histogram")
    if not 0.0 < distinct_rows <= lookups < np.inf:
        raise WorkloadError(f"borrowed: {lookups:g} lookups of {distinct_rows:g} distinct rows")
    nearest = min(known, key=lambda each: abs(np.log(each.lookups / lookups)))
    repeats = nearest.lookups - nearest.distinct_rows
    if not repeats > 0.0:
        raise WorkloadError(f"borrowed: reuse histogram {nearest.name!r}: no row comes twice")
    rows = nearest.rows * (distinct_rows / nearest.distinct_rows)
    beyond = (nearest.bin_lookups - nearest.rows) * ((lookups - distinct_rows) / repeats)
    return Popularity(rows, (rows + beyond) / lookups)
