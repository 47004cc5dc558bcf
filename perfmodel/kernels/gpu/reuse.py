"""Which looked-up rows a cache holds: misses of a batch of lookups, vectorised over rows.

Access probabilities fall as rank to the power -alpha (0: uniform). The cache keeps the most
popular rows; each of those misses once.
"""

from __future__ import annotations

import numpy as np

from perfmodel.ops.spec import Floats

_POINTS = 96


def missed_lookups(
    lookups: Floats, table_rows: Floats, cached_rows: Floats, zipf_alpha: Floats
) -> Floats:
    """Lookups that go to memory, out of `lookups` in one table; at least the distinct cached rows.

    `lookups`, `table_rows`, `cached_rows` `[n]` counts, `zipf_alpha` `[n]`. Sums over ranks are
    integrals over a grid of log-spaced ranks.
    """
    ends = np.maximum(table_rows, 1.0)[:, None] ** np.linspace(0.0, 1.0, _POINTS)[None, :]
    lower = np.concatenate([np.zeros((len(lookups), 1)), ends[:, :-1]], axis=1)
    weight = _mass(ends, zipf_alpha[:, None]) - _mass(lower, zipf_alpha[:, None])
    share = weight / np.sum(weight, axis=1, keepdims=True)
    ranks = np.maximum(ends - lower, 1e-12)
    per_rank = share / ranks * lookups[:, None]
    once = ranks * -np.expm1(-per_rank)
    every = share * lookups[:, None]
    cached = np.clip((cached_rows[:, None] - lower) / ranks, 0.0, 1.0)
    missed = np.sum(cached * once + (1.0 - cached) * every, axis=1)
    least: Floats = np.minimum(missed, lookups)
    return least


def _mass(rank: Floats, alpha: Floats) -> Floats:
    """The integral of rank ** -alpha from 0.5 to rank + 0.5, 0 for rank 0."""
    upper, half = rank + 0.5, 0.5
    power = 1.0 - alpha
    is_log = np.abs(power) < 1e-6
    safe = np.where(is_log, 1.0, power)
    return np.where(is_log, np.log(upper / half), (upper**safe - half**safe) / safe)


def distinct_rows(lookups: Floats, table_rows: Floats, zipf_alpha: Floats) -> Floats:
    """How many different rows `lookups` touch, on average."""
    return missed_lookups(lookups, table_rows, table_rows, zipf_alpha)
