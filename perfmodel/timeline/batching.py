"""Latency of a server whose batches start when they are full, or when their oldest query has waited
so long.

Queries come as a Poisson process. The chain of how many wait where a batch starts is solved for its
steady state (embedded at these times: Kleinrock, Queueing Systems, volume 1, chapter 5); where they
are many, on a grid that keeps means. A query that finds none waiting opens a batch `t` after the
one before began, which starts `max(S - t, D)` later or, free, once it is full. What is left over
came at the rate at which queues build up: `a' exp(-a') = a exp(-a)`, `a` the load (large
deviations: Shwartz and Weiss, 1995).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy.special import gammainc, gammaincinv, lambertw, pdtr

from perfmodel.base.arrays import Floats, Ints, Mask
from perfmodel.base.units import US_PER_S
from perfmodel.errors import UsageError
from perfmodel.timeline.offered import LoadLatency, Service, require_rate, unstable

POINTS, MOST_POINTS = 72, 400
"""Of the grid up to a full batch, and at least as many beyond, where steps are not to be wide
against the spread of a full batch's arrivals; their squares are even, as a Poisson number's spread
goes with its root."""
_BUSY = (np.arange(16) + 0.5) / 16
"""Quantiles of when a batch is opened while another runs."""
_SPREAD = np.array([0.002, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 0.98, 0.99, 0.997, 0.9995])
"""And between which times of a number of arrivals are spread evenly, the rarest with the others."""
_NEGLIGIBLE = 1e-8
_SPREADS = 8.0
"""Of a Poisson number: none is farther from its mean."""
_NO_LIMIT = 1e3
"""In the place of an endless delay, of the time in which a batch fills."""


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


def batched_latency(
    steps: BatchSteps, rate_per_s: float, most: int, max_delay_us: float
) -> LoadLatency:
    """Latency of queries at `rate_per_s` in batches of up to `most`, the oldest of which waits at
    most `max_delay_us` for others to come. Raises `UsageError` for what no rate or delay can be."""
    require_rate(rate_per_s)
    if not max_delay_us >= 0:
        raise UsageError(f"latency under load: a delay of {max_delay_us:g} us")
    rate = rate_per_s / US_PER_S
    load = rate * float(steps.period_us(most)) / most
    if load >= 1:
        return unstable(rate_per_s, load)
    delay_us = min(max_delay_us, _NO_LIMIT * most / rate)
    beyond = np.ceil(12 / (1 - load) + 8 * most**0.5)
    points = min(max(round(2.8 * beyond / most**0.5), POINTS), MOST_POINTS)
    waiting = np.concatenate([_grid(most, POINTS), most + _grid(beyond, points)])
    size = np.minimum(waiting, most)
    left, service_us = waiting - size, steps.period_us(size)
    at, opened_us, weight = _openings(left, service_us, rate)
    busy_us = np.maximum(service_us[at] - opened_us, 0.0)
    late_us = np.maximum(busy_us, delay_us)
    goes = _transitions(waiting, np.maximum(left, 1.0)[at], rate * busy_us, rate * late_us, most)
    goes *= weight[:, None]
    chain = np.zeros((len(waiting), len(waiting)))
    np.add.at(chain, at, goes)
    share = _steady(chain)[at, None] * goes
    case, to = np.nonzero(share > _NEGLIGIBLE)
    waits = _Waits(steps.latency_us(size)[to])
    counts = left[at][case], waiting[to]
    times = service_us[at][case], busy_us[case], late_us[case]
    _add_waits(waits, share[case, to], counts, times, (rate, load, most))
    return LoadLatency(rate_per_s, load, *waits.figures())


def _grid(last: float, points: int) -> Floats:
    return np.unique(np.round(np.linspace(1.0, last**0.5, points) ** 2))


def _openings(left: Floats, service_us: Floats, rate: float) -> tuple[Ints, Floats, Floats]:
    """When the next batch is opened, microseconds after each that started: (which, when, in which
    share of the cases): at once where some are left over, else by the first that comes."""
    new = np.flatnonzero(left == 0)
    while_busy = -np.expm1(-rate * service_us[new])
    times_us = -np.log1p(-_BUSY * while_busy[:, None]) / rate
    shares = np.broadcast_to(while_busy[:, None] / len(_BUSY), times_us.shape)
    over = np.flatnonzero(left > 0)
    at = np.concatenate([np.repeat(new, len(_BUSY)), new, over])
    opened_us = np.concatenate([times_us.ravel(), service_us[new], np.zeros(len(over))])
    return at, opened_us, np.concatenate([shares.ravel(), 1 - while_busy, np.ones(len(over))])


def _transitions(waiting: Floats, first: Floats, busy: Floats, late: Floats, most: int) -> Floats:
    """`[case, to]`: shares in which so many wait next: `first` and a Poisson number of mean `busy`;
    where that is no full batch, of mean `late` in all, up to a full one."""

    def excess(mean: Floats) -> Floats:
        """E[(N - point)+] for every point."""
        x, mu = np.broadcast_arrays(waiting - first[:, None], mean[:, None])
        found: Floats = np.maximum(mu - x, 0.0)
        near = (x >= 0) & (np.abs(x - mu) < _SPREADS * (mu**0.5 + 1))
        x, mu = x[near], mu[near]
        whole = np.floor(x)
        from_whole = np.where(whole > 0, 1.0 - pdtr(np.maximum(whole - 1.0, 0.0), mu), 1.0)
        found[near] = mu * from_whole - x * (1.0 - pdtr(whole, mu))
        return found

    busy_excess, late_excess = excess(busy), excess(late)
    full = np.flatnonzero(waiting == most)
    below = late_excess - late_excess[:, full] + busy_excess[:, full]
    found = np.where(waiting < most, below, busy_excess)
    beyond = -np.diff(found, axis=1) / np.diff(waiting)
    ends = np.ones((len(first), 1))
    goes = np.concatenate([ends, beyond], axis=1) - np.concatenate([beyond, 0 * ends], axis=1)
    goes = np.maximum(goes, 0.0)
    return np.asarray(goes / goes.sum(axis=1, keepdims=True))


def _steady(goes: Floats) -> Floats:
    """The distribution that a chain's `[from, to]` keeps."""
    balance = goes.T - np.eye(len(goes))
    balance[-1] = 1.0
    return np.linalg.solve(balance, np.append(np.zeros(len(goes) - 1), 1.0))


@dataclass(frozen=True)
class _Waits:
    """Waits of queries, spread evenly from a low to a high end, and then their batch."""

    latency_us: Floats
    parts: list[Floats] = field(default_factory=list)

    def add(
        self, where: Mask, weight: Floats, low_us: Floats | float, high_us: Floats | float
    ) -> None:
        """So many queries of each case that is meant."""
        weight = np.where(where, weight, 0.0)
        ends = (np.maximum(low_us, 0.0) + self.latency_us, high_us + self.latency_us)
        self.parts.append(np.stack(np.broadcast_arrays(weight, *ends))[:, weight > 0])

    def figures(self) -> tuple[float, float, float]:
        """The mean, the median and the 99th percentile."""
        weight, low, high = np.concatenate(self.parts, axis=1)
        weight, wide = weight / weight.sum(), np.maximum(high - low, 1e-9)

        def quantile(frac: float) -> float:
            least, most = float(low.min()), float(high.max())
            for _ in range(40):
                middle = (least + most) / 2
                below = weight @ np.clip((middle - low) / wide, 0.0, 1.0)
                least, most = (middle, most) if below < frac else (least, middle)
            return most

        return float(weight @ (low + high) / 2), quantile(0.5), quantile(0.99)


def _add_waits(
    waits: _Waits,
    share: Floats,
    counts: tuple[Floats, Floats],
    times: tuple[Floats, Floats, Floats],
    about: tuple[float, float, int],
) -> None:
    """Per case: its share; how many were left over and wait next; service, what was left of it when
    a batch was opened, and until that starts; the rate, the load and the largest batch."""
    (left, waiting), (service_us, busy_us, late_us), (rate, load, most) = counts, times, about
    size, opened = np.minimum(waiting, most), left == 0
    is_full, is_over = waiting == most, waiting > most
    # A new batch: its first query, and the others evenly after it.
    taken_us = np.where(is_over, busy_us, late_us)
    among = np.where(is_over, (most - 1) / np.maximum(waiting - 1, 1), 1.0)
    alone = opened & ~is_full
    waits.add(alone, share, taken_us, taken_us)
    waits.add(alone, share * (size - 1), taken_us * (1 - among), taken_us)
    shares = np.diff(_SPREAD) / np.ptp(_SPREAD)
    if most > 1:  # one that is full before its delay is over: the last query waits for nothing
        least, last = (gammainc(most - 1, rate * each) for each in (busy_us, late_us))
        ends = least + (last - least) * _SPREAD[:, None]
        filled_us = np.where(last - least < 1e-12, busy_us, gammaincinv(most - 1, ends) / rate)
        for each, low_us, high_us in zip(shares, filled_us, filled_us[1:], strict=False):
            waits.add(opened & is_full, share * each, low_us, high_us)
            waits.add(opened & is_full, share * each, 0.0, 0.0)
            waits.add(opened & is_full, share * each * (most - 2), 0.0, (low_us + high_us) / 2)
    else:
        waits.add(opened & is_full, share, busy_us, busy_us)
    # With queries left over from the batch before.
    built = rate * float(-lambertw(-load * np.exp(-load), -1).real) / load
    kept = np.minimum(left, most)
    known, place = np.unique(left, return_inverse=True)
    since_us = (gammaincinv(known + 1, _SPREAD[:, None]) / built / (known + 1))[:, place]
    filled_us = np.minimum(late_us, np.maximum(service_us, (most - left) / rate))
    taken_us = np.where(is_over, service_us, np.where(is_full, filled_us, late_us))
    for each, low_us, high_us in zip(shares, since_us, since_us[1:], strict=False):
        ends = taken_us + (left - kept + 0.5) * low_us, taken_us + (left + 0.5) * high_us
        waits.add(~opened, share * kept * each, *ends)
    among = np.minimum((size - kept) / np.maximum(waiting - left, 1e-9), 1.0)
    waits.add(~opened, share * (size - kept), taken_us * (1 - among), taken_us)
