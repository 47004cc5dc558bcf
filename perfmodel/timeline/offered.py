"""Latency of a server of batches under an offered rate: mean, quantiles, and where it is unstable.

Queries come as a Poisson process, wait for their batch to fill or until the oldest in it has waited
so long, then in line, then for the batch; each is followed. The same queries come at every rate and
in every process, so that answers repeat and change with what is asked alone. Of a queue near the
most that is served, which changes slowly, they say less.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from math import inf, isfinite
from typing import Any

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.units import US_PER_S
from perfmodel.errors import UsageError

QUERIES, BATCHES = 2**20, 16
"""So many are followed, or so many full batches."""
MOST_QUERIES = 2**22
"""Of a batch that need not be full: more would be followed in gigabytes of memory."""
FOLLOWED = 2**16
"""Of a full batch: more are followed as so many groups, each as its last query."""
UNSETTLED_FRAC = 1 / 8
"""Of them, those that come first, and find no queue, are not counted."""
MIN_PER_S = 1e-100
"""Of rates: the time between two is still a number, times the largest batch."""


@dataclass(frozen=True)
class Service:
    """One batch: it takes `latency_us` from its start, and the next can start after `period_us`."""

    period_us: float
    latency_us: float

    def __post_init__(self) -> None:
        for value in (self.period_us, self.latency_us):
            if not (value > 0 and isfinite(value)):
                raise UsageError(f"latency under load: a batch of {value:g} us")


@dataclass(frozen=True)
class BatchSteps:
    """Batches of rising sizes, and what each takes: on a line between two, and below the smallest
    as that."""

    sizes: tuple[int, ...]
    services: tuple[Service, ...]

    def period_us(self, sizes: Floats | int) -> Floats:
        return np.asarray(np.interp(sizes, self.sizes, [it.period_us for it in self.services]))

    def latency_us(self, sizes: Floats | int) -> Floats:
        return np.asarray(np.interp(sizes, self.sizes, [it.latency_us for it in self.services]))


@dataclass(frozen=True)
class LoadLatency:
    """Microseconds from a query's arrival to its answer at `rate_per_s` queries per second.

    `load_frac` of the server's time is taken; from 1 on no queue is stable: means and quantiles are
    None and `note` says by how much.
    """

    rate_per_s: float
    load_frac: float
    mean_us: float | None
    p50_us: float | None
    p99_us: float | None
    note: str = ""
    batch: int | None = None
    """Queries in a batch at most, where batches have a limit to their delay."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def latency_under(
    service: Service, rate_per_s: float, *, queries_per_batch: int = 1
) -> LoadLatency:
    """Latency of queries at `rate_per_s`; a batch starts when `queries_per_batch` have come.

    Raises `UsageError` for a rate or sizes that cannot be.
    """
    return batched_latency(
        BatchSteps((queries_per_batch,), (service,)), rate_per_s, queries_per_batch, inf
    )


def batched_latency(
    steps: BatchSteps, rate_per_s: float, most: int, max_delay_us: float
) -> LoadLatency:
    """Latency of queries at `rate_per_s` in batches of up to `most`, the oldest of which waits at
    most `max_delay_us` for others to come; `inf`: until they are full.

    Raises `UsageError` for what no rate, size or delay can be, and for more than `MOST_QUERIES` in
    one that need not be full.
    """
    require_rate(rate_per_s)
    if not 1 <= most <= (inf if max_delay_us == inf else MOST_QUERIES):
        raise UsageError(
            f"latency under load: a batch of {most:,}: expected at least 1, and at most "
            f"{MOST_QUERIES:,} samples where its delay is limited"
        )
    if not max_delay_us >= 0:
        raise UsageError(f"latency under load: a delay of {max_delay_us:g} us")
    load = rate_per_s / US_PER_S * float(steps.period_us(most)) / most
    if load >= 1:
        served = f"at most {rate_per_s / load:.6g} served"
        note = f"unstable: {rate_per_s:.6g} queries per second offered, {served}"
        return LoadLatency(rate_per_s, load, None, None, None, note)
    each = -(-most // FOLLOWED) if max_delay_us == inf else 1
    groups = -(-most // each)
    count = max(QUERIES, BATCHES * groups)
    arrived_us = _arrivals(count, each) * (US_PER_S / rate_per_s)
    if max_delay_us == inf:
        whole = float(steps.period_us(most)), float(steps.latency_us(most))
        taken_us = _in_full_batches(arrived_us, groups, *whole)
    else:
        sizes = np.arange(most + 1, dtype=np.float64)
        by_size = steps.period_us(sizes), steps.latency_us(sizes)
        taken_us = _followed()(arrived_us, most, max_delay_us, *by_size)
    taken_us = taken_us[round(UNSETTLED_FRAC * count) :]
    p50_us, p99_us = np.quantile(taken_us, (0.5, 0.99)).tolist()
    return LoadLatency(rate_per_s, load, float(taken_us.mean()), p50_us, p99_us)


def require_rate(rate_per_s: float) -> None:
    """Raises `UsageError` for a rate that cannot be."""
    if not (rate_per_s >= MIN_PER_S and isfinite(rate_per_s)):
        raise UsageError(f"latency under load: a rate of {rate_per_s:g} per second")


@lru_cache(maxsize=1)
def _arrivals(count: int, each: int = 1) -> Floats:
    """Of so many groups of `each` queries, of which one comes per unit of time in the mean."""
    random = np.random.default_rng(0)
    apart = random.standard_exponential(count) if each == 1 else random.standard_gamma(each, count)
    return np.cumsum(apart)


def _in_full_batches(
    arrived_us: Floats, groups: int, period_us: float, latency_us: float
) -> Floats:
    """Per group of queries, from its arrival to its answer: a batch of so many starts when its last
    has come and the one before is done."""
    batches = len(arrived_us) // groups
    arrived_us = arrived_us[: batches * groups].reshape(batches, groups)
    before_us = np.arange(batches) * period_us
    start_us = np.maximum.accumulate(arrived_us[:, -1] - before_us) + before_us
    taken_us: Floats = start_us[:, None] + latency_us - arrived_us
    return taken_us.reshape(-1)


@lru_cache(maxsize=1)
def _followed() -> Callable[..., Floats]:
    """Batches that need not be full: compiled, for which others do not wait."""
    from perfmodel.base.registry import compiled  # Numba, which not every install has

    return compiled()(_answered_us)


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
