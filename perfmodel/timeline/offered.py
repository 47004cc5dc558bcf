"""Latency of a server of batches under an offered rate: mean, quantiles, and where it is unstable.

Queries wait for their batch to fill, then in line, then for the batch. Batches arrive at gamma
intervals and occupy the server for gamma periods: the mean wait is that of Kraemer and
Langenbach-Belz (1976), which for Poisson arrivals is Pollaczek and Khinchine's; its tail falls as
Lundberg's exponent says (Asmussen, Applied Probability and Queues, chapter XIII).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import exp, isfinite, log, log1p
from typing import Any

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.units import US_PER_S
from perfmodel.errors import UsageError

_ITERATIONS = 200
_MIN_SCV = 1e-9


@dataclass(frozen=True)
class Service:
    """One batch: it takes `latency_us` from its start, and the next can start `period_us` after it.

    `scv` is the squared coefficient of variation of the period, 0 where each takes as long.
    """

    period_us: float
    latency_us: float
    scv: float = 0.0

    def __post_init__(self) -> None:
        for value in (self.period_us, self.latency_us):
            if not (value > 0 and isfinite(value)):
                raise UsageError(f"latency under load: a batch of {value:g} us")
        if not self.scv >= 0:
            raise UsageError(f"latency under load: a variation of {self.scv:g}")


@dataclass(frozen=True)
class BatchSteps:
    """Batches of rising sizes, and what each takes: on a line between two, and below the smallest
    as that."""

    sizes: tuple[int, ...]
    services: tuple[Service, ...]

    def period_us(self, sizes: Floats | int) -> Floats:
        return np.asarray(np.interp(sizes, self.sizes, [it.period_us for it in self.services]))

    def latency_us(self, sizes: Floats) -> Floats:
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
    service: Service,
    rate_per_s: float,
    *,
    queries_per_batch: int = 1,
    batches_per_query: float = 1.0,
) -> LoadLatency:
    """Latency of Poisson queries at `rate_per_s`.

    A batch starts when `queries_per_batch` have come; or a query is `batches_per_query` batches
    (on average) and is answered with the last. Raises `UsageError` for a rate or sizes that cannot
    be.
    """
    require_rate(rate_per_s)
    if min(queries_per_batch, batches_per_query) < 1 or queries_per_batch > 1 < batches_per_query:
        raise UsageError("latency under load: queries per batch, or batches per query, at least 1")
    taken_us = service.period_us * batches_per_query
    apart_us = US_PER_S / rate_per_s * queries_per_batch
    load = taken_us / apart_us
    if load >= 1:
        return unstable(rate_per_s, load)
    arrival_scv = 1 / queries_per_batch
    period_scv = service.scv / batches_per_query
    both_scv, wait_us = arrival_scv + period_scv, 0.0
    if both_scv > 0:
        regular = exp(-2 * (1 - load) * (1 - arrival_scv) ** 2 / (3 * load * both_scv))
        wait_us = load * taken_us * both_scv / (2 * (1 - load)) * regular
    decay = _decay(load, arrival_scv, period_scv) / taken_us
    rest_us = service.latency_us + (batches_per_query - 1) * service.period_us
    fill_us = US_PER_S / rate_per_s * (queries_per_batch - 1) / 2

    def quantile(frac: float) -> float:
        tail_us = max(log(max(wait_us * decay, 1e-300) / (1 - frac)) / decay, 0.0)
        return tail_us + 2 * fill_us * frac + rest_us

    mean_us = wait_us + fill_us + rest_us
    return LoadLatency(rate_per_s, load, mean_us, quantile(0.5), quantile(0.99))


def unstable(rate_per_s: float, load: float) -> LoadLatency:
    """Where more is offered than is served."""
    most = rate_per_s / load
    note = f"unstable: {rate_per_s:.6g} queries per second offered, at most {most:.6g} served"
    return LoadLatency(rate_per_s, load, None, None, None, note)


MIN_PER_S = 1e-100
"""Of rates: the time between two is still a number, times the largest batch."""


def require_rate(rate_per_s: float) -> None:
    """Raises `UsageError` for a rate that cannot be."""
    if not (rate_per_s >= MIN_PER_S and isfinite(rate_per_s)):
        raise UsageError(f"latency under load: a rate of {rate_per_s:g} per second")


def _bisect(holds: Callable[[float], bool], low: float, high: float) -> float:
    """The largest value between `low`, which holds, and `high`, which does not."""
    for _ in range(_ITERATIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _decay(load: float, arrival_scv: float, period_scv: float) -> float:
    """x with E[exp(x S)] E[exp(-x A)] = 1, S of mean 1 and A of mean 1 / load, both gamma."""

    def excess(x: float) -> float:
        return _log_mgf(x, 1.0, period_scv) + _log_mgf(-x, 1 / load, arrival_scv)

    high = 1 / period_scv * (1 - 1e-12) if period_scv > _MIN_SCV else 1.0
    while period_scv <= _MIN_SCV and excess(high) < 0 and high < 1e6:
        high *= 2
    return max(_bisect(lambda x: excess(x) < 0, 0.0, high), 1e-300)


def _log_mgf(x: float, mean: float, scv: float) -> float:
    """ln E[exp(x V)] of a gamma variable V."""
    if scv <= _MIN_SCV:
        return x * mean
    return -log1p(-x * mean * scv) / scv
