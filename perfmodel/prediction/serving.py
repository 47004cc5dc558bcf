"""Latency of a server of batches under an offered rate: mean, quantiles, and where it is unstable;
the batch that serves a rate, or the largest rate, within a 99th percentile.

Queries come as a Poisson process, wait for their batch to fill or until the oldest in it has waited
so long, then in line, then for the batch; each is followed. The same queries come at every rate and
in every process, so that answers repeat and change with what is asked alone. Of a queue near the
most that is served, which changes slowly, they say less.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache, lru_cache
from math import inf, isfinite
from typing import Any

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.units import US_PER_MS, US_PER_S, human_us
from perfmodel.errors import PerfmodelError, UsageError, prefixed
from perfmodel.prediction.types import Prediction, Result

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
    if max_delay_us == inf:  # one starts when its last has come and the one before is done
        batches = len(arrived_us) // groups
        arrived_us = arrived_us[: batches * groups].reshape(batches, groups)
        before_us = np.arange(batches) * float(steps.period_us(most))
        start_us = np.maximum.accumulate(arrived_us[:, -1] - before_us) + before_us
        answered_us = start_us + float(steps.latency_us(most))
        taken_us = (answered_us[:, None] - arrived_us).reshape(-1)
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


_SHRINKS, _SIZES, _ROUNDS = 4, 5, 9
"""Sizes of batches that are predicted: each a quarter of the next; halvings of a range of rates."""
_FULL, _LEAST = (0.005, 0.01, 0.02, *((at + 1) / 25 for at in range(24))), 1e-6
"""Loads that are tried first. With a limit to the delay the 99th percentile grows with the rate;
batches that wait until they are full take longest at low rates, too."""


@dataclass(frozen=True)
class Serving:
    """What is asked: batches start when they are full, or when their oldest query has waited for
    `max_delay_us`, where that is given; at `rate_per_s`, or at the largest rate within `p99_us`;
    with both, in the batch that takes the machine least. Raises `UsageError` for what cannot be
    asked."""

    max_delay_us: float | None
    rate_per_s: float | None = None
    p99_us: float | None = None

    def __post_init__(self) -> None:
        delay_us = self.max_delay_us
        if delay_us is not None and not (delay_us >= 0 and isfinite(delay_us)):
            given_ms = delay_us / US_PER_MS
            raise UsageError(f"--max-delay-ms {given_ms:g}: expected milliseconds, 0 or more")
        if self.p99_us is not None and not (self.p99_us > 0 and isfinite(self.p99_us)):
            given_ms = self.p99_us / US_PER_MS
            raise UsageError(f"--p99-ms {given_ms:g}: expected milliseconds above 0")
        if self.rate_per_s is not None:
            require_rate(self.rate_per_s)
        elif self.p99_us is None:
            raise UsageError("--max-delay-ms: give a --rate, or a latency to meet: --p99-ms")

    @classmethod
    def of(
        cls, rate_per_s: float | None, p99_ms: float | None, max_delay_ms: float | None
    ) -> Serving | None:
        """Of limits in milliseconds; None where nothing is asked."""
        delay_us, p99_us = (None if ms is None else ms * US_PER_MS for ms in (max_delay_ms, p99_ms))
        nothing = (rate_per_s, p99_us, delay_us) == (None, None, None)
        return None if nothing else cls(delay_us, rate_per_s, p99_us)

    def served(self, batch: int, ranks: int, result_of: Callable[[int], Result]) -> LoadLatency:
        """The latency in batches of up to `batch`, or of what meets the target, whose batch it
        says; `result_of` predicts a batch of all `ranks`. Sizes that cannot be are left out."""
        sizes = {max(batch // _SHRINKS**power // ranks, 1) * ranks for power in range(_SIZES)}
        known: dict[int, Service] = {}
        for size in sorted({batch, *(sizes if self.max_delay_us is not None else ())}):
            with suppress(PerfmodelError):
                result = result_of(size)
                known[size] = Service(result.step_us, result.latency_us or result.step_us)
        steps = BatchSteps(tuple(known), tuple(known.values()))
        if self.p99_us is None:
            assert self.rate_per_s is not None
            return self._at(steps, self.rate_per_s, max(known))
        found, met = list[LoadLatency](), list[LoadLatency]()
        for size in reversed(known):  # the largest mostly serves most: others at higher rates only
            most_per_s = max((each.rate_per_s for each in met), default=0.0)
            found.append(self._best(steps, size, self.p99_us, most_per_s))
            met += [each for each in found[-1:] if _p99_us(each) <= self.p99_us]
        if not met:
            best = min(found, key=_p99_us)
            why = f"{human_us(best.p99_us)} at best" if best.p99_us else best.note
            note = f"not 99 % within {human_us(self.p99_us)}: {why}"
            note += ": try a smaller --batch" if self.max_delay_us is None else ""
            return replace(best, mean_us=None, p50_us=None, p99_us=None, note=note)
        return max(met, key=lambda each: (each.rate_per_s, -each.load_frac))

    def remarks(self, load: LoadLatency, batch: int) -> list[str]:
        """That most of the time is until batches are full, where nothing limits it."""
        fill_us = (batch - 1) / 2 / load.rate_per_s * US_PER_S
        if self.max_delay_us is not None or fill_us <= (load.mean_us or inf) / 2:
            return []
        filling = f"samples wait {human_us(fill_us)} on average until batches of {batch:,} are full"
        return [f"{filling}: --max-delay-ms limits that"]

    def _at(self, steps: BatchSteps, rate_per_s: float, size: int) -> LoadLatency:
        if self.max_delay_us is None:
            return batched_latency(steps, rate_per_s, size, inf)
        return replace(batched_latency(steps, rate_per_s, size, self.max_delay_us), batch=size)

    def _best(self, steps: BatchSteps, size: int, p99_us: float, least_per_s: float) -> LoadLatency:
        """At the rate asked for, else the largest in time from `least_per_s`, or the least."""
        if self.rate_per_s is not None:
            return self._at(steps, self.rate_per_s, size)
        most_per_s = size / float(steps.period_us(size)) * US_PER_S
        loads = _FULL if self.max_delay_us is None else (max(least_per_s / most_per_s, _LEAST),)
        found = [self._at(steps, load * most_per_s, size) for load in loads]
        met = [at for at, each in enumerate(found) if _p99_us(each) <= p99_us]
        if not met:
            return min(found, key=_p99_us)
        low, high = (*loads, 1.0)[met[-1] : met[-1] + 2]
        best = found[met[-1]]
        for _ in range(_ROUNDS):
            middle = (low + high) / 2
            tried = self._at(steps, middle * most_per_s, size)
            is_met = _p99_us(tried) <= p99_us
            low, high, best = (middle, high, tried) if is_met else (low, middle, best)
        return best


def _p99_us(load: LoadLatency) -> float:
    return inf if load.p99_us is None else load.p99_us


def with_latencies(
    found: Prediction, serving: Serving, again: Callable[[int, int], Result]
) -> Prediction:
    """With the latency at the rate, the rate within the latency, or with a limit to the delay the
    batch that serves both, on each machine; `again` predicts another batch on one of them. Raises
    `UsageError` where no rate has the latency that is asked for."""
    delay_us, rate_per_s, p99_us = serving.max_delay_us, serving.rate_per_s, serving.p99_us
    asked = [serving]
    if delay_us is None and None not in (rate_per_s, p99_us):
        asked = [Serving(None, None, p99_us), Serving(None, rate_per_s)]
    batch, rows, remarks = found.source["batch"], list[dict[str, Any]](), list[str]()
    for place, result in enumerate(found.results):

        @cache
        def result_of(size: int, given: Result = result, place: int = place) -> Result:
            return given if size == batch else again(size, place)

        explainer: Any = result.explainer
        row: dict[str, Any] = {"hardware": result.hardware}
        for each in asked:
            load = each.served(batch, explainer.machine.gpus, result_of)
            if load.p99_us is None and each.p99_us is not None:
                limit_ms = each.p99_us / US_PER_MS
                raise UsageError(f"--p99-ms {limit_ms:g}: {result.hardware}: {load.note}")
            remarks += [prefixed(result.hardware, note) for note in each.remarks(load, batch)]
            row |= load.to_dict() | ({} if delay_us is None else {"max_delay_us": delay_us})
            if each.rate_per_s is None:
                row |= {"p99_limit_us": p99_us, "most_per_s": load.rate_per_s}
        rows.append(row)
    source = found.source | {"serving": rows}
    return replace(found, source=source, warnings=[*found.warnings, *remarks])
