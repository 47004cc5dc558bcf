"""Which looked-up rows a cache holds: misses of a batch of lookups, vectorised over rows.

Access probabilities fall as rank to the power -alpha (0: uniform), in classes of ranks as
`perfmodel.locality` makes them. The cache keeps the most popular rows; each of those misses once.
"""

from __future__ import annotations

import numpy as np

from perfmodel.locality.popularity import touched_per_class
from perfmodel.locality.skew import zipf_classes
from perfmodel.ops.spec import Floats


def missed_lookups(
    lookups: Floats, table_rows: Floats, cached_rows: Floats, zipf_alpha: Floats
) -> Floats:
    """Lookups that go to memory, out of `lookups` in one table; at least the distinct cached rows.

    `lookups`, `table_rows`, `cached_rows` `[n]` counts, `zipf_alpha` `[n]`.
    """
    rows, share = zipf_classes(table_rows, zipf_alpha)
    less_popular = np.cumsum(rows, axis=1) - rows
    held = np.maximum(rows, 1e-300)
    cached = np.clip((cached_rows[:, None] - less_popular) / held, 0.0, 1.0)
    once = touched_per_class(rows, share / held, lookups)
    missed = np.sum(cached * once + (1.0 - cached) * share * lookups[:, None], axis=1)
    least: Floats = np.minimum(missed, lookups)
    return least


def distinct_rows(lookups: Floats, table_rows: Floats, zipf_alpha: Floats) -> Floats:
    """How many different rows `lookups` touch, on average."""
    return missed_lookups(lookups, table_rows, table_rows, zipf_alpha)
