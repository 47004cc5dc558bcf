"""Latency of a server of batches under an offered rate: mean, quantiles, and where it is unstable.

Queries wait for their batch to fill, then in line, then for the batch. Batches arrive at gamma
intervals and each occupies the server for a period: the mean wait is that of Kraemer and
Langenbach-Belz (1976), which for Poisson arrivals is Pollaczek and Khinchine's; its tail falls as
Lundberg's exponent says (Asmussen, Applied Probability and Queues, chapter XIII).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import exp, isfinite, log, log1p
from typing import Any

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.units import US_PER_S
from perfmodel.errors import UsageError

_ITERATIONS = 200


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
    service: Service, rate_per_s: float, *, queries_per_batch: int = 1
) -> LoadLatency:
    """Latency of Poisson queries at `rate_per_s`; a batch starts when `queries_per_batch` have
    come. Raises `UsageError` for a rate or sizes that cannot be."""
    require_rate(rate_per_s)
    if queries_per_batch < 1:
        raise UsageError("latency under load: queries per batch, at least 1")
    taken_us = service.period_us
    apart_us = US_PER_S / rate_per_s * queries_per_batch
    load = taken_us / apart_us
    if load >= 1:
        return unstable(rate_per_s, load)
    arrival_scv = 1 / queries_per_batch
    regular = exp(-2 * (1 - load) * (1 - arrival_scv) ** 2 / (3 * load * arrival_scv))
    wait_us = load * taken_us * arrival_scv / (2 * (1 - load)) * regular
    decay = _decay(load, arrival_scv) / taken_us
    fill_us = US_PER_S / rate_per_s * (queries_per_batch - 1) / 2

    def quantile(frac: float) -> float:
        tail_us = max(log(max(wait_us * decay, 1e-300) / (1 - frac)) / decay, 0.0)
        return tail_us + 2 * fill_us * frac + service.latency_us

    mean_us = wait_us + fill_us + service.latency_us
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


def _decay(load: float, arrival_scv: float) -> float:
    """x with exp(x) E[exp(-x A)] = 1, A gamma of mean 1 / load."""

    def excess(x: float) -> float:
        return x - log1p(x * (1 / load) * arrival_scv) / arrival_scv

    low, high = 0.0, 1.0
    while excess(high) < 0 and high < 1e6:
        high *= 2
    for _ in range(_ITERATIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) < 0 else (low, middle)
    return max(low, 1e-300)
