"""Latency of a server whose batches start when they are full, or when their oldest query has waited
so long.

Queries come as a Poisson process, and are followed one by one: of each the batch, when that starts
and what it takes. The same queries come at every rate and in every process, so that answers repeat
and change with what is asked alone. Of a queue near the most that is served, which changes slowly,
they say less.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.compiled import compiled
from perfmodel.base.units import US_PER_S
from perfmodel.errors import UsageError
from perfmodel.timeline.offered import BatchSteps, LoadLatency, require_rate, unstable

QUERIES, BATCHES = 2**20, 16
"""So many are followed, or so many full batches."""
MOST_QUERIES = 2**22
"""Of a batch: more would be followed in gigabytes of memory."""
UNSETTLED_FRAC = 1 / 8
"""Of them, those that come first, and find no queue, are not counted."""


def batched_latency(
    steps: BatchSteps, rate_per_s: float, most: int, max_delay_us: float
) -> LoadLatency:
    """Latency of queries at `rate_per_s` in batches of up to `most`, the oldest of which waits at
    most `max_delay_us` for others to come.

    Raises `UsageError` for what no rate or delay can be, and for more than `MOST_QUERIES` in one.
    """
    require_rate(rate_per_s)
    if most > MOST_QUERIES:
        raise UsageError(
            f"--max-delay-ms: a batch of {most:,}: expected at most {MOST_QUERIES:,} samples"
        )
    if not max_delay_us >= 0:
        raise UsageError(f"latency under load: a delay of {max_delay_us:g} us")
    load = rate_per_s / US_PER_S * float(steps.period_us(most)) / most
    if load >= 1:
        return unstable(rate_per_s, load)
    count, sizes = max(QUERIES, BATCHES * most), np.arange(most + 1, dtype=np.float64)
    arrived_us = _arrivals(count) * (US_PER_S / rate_per_s)
    by_size = steps.period_us(sizes), steps.latency_us(sizes)
    taken_us = _answered_us(arrived_us, most, max_delay_us, *by_size)
    taken_us = taken_us[round(UNSETTLED_FRAC * count) :]
    p50_us, p99_us = np.quantile(taken_us, (0.5, 0.99)).tolist()
    return LoadLatency(rate_per_s, load, float(taken_us.mean()), p50_us, p99_us)


@lru_cache(maxsize=1)
def _arrivals(count: int) -> Floats:
    """Of so many queries, one per unit of time in the mean."""
    return np.cumsum(np.random.default_rng(0).standard_exponential(count))


@compiled()
def _answered_us(
    arrived_us: Floats, most: int, max_delay_us: float, period_us: Floats, latency_us: Floats
) -> Floats:
    """Per query, from its arrival to its answer, as long as batches can fill; what one takes is by
    its size."""
    first, free_us = 0, 0.0
    taken_us = np.empty(len(arrived_us))
    while first + most <= len(arrived_us):
        start_us = max(free_us, min(arrived_us[first] + max_delay_us, arrived_us[first + most - 1]))
        size = 1
        while size < most and arrived_us[first + size] <= start_us:
            size += 1
        for query in range(first, first + size):
            taken_us[query] = start_us + latency_us[size] - arrived_us[query]
        free_us = start_us + period_us[size]
        first += size
    return taken_us[:first]
