"""Serving in batches: latency at a rate, and the batch that serves a rate, or the largest rate,
within a 99th percentile."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf, isfinite

from perfmodel.base.units import US_PER_MS, US_PER_S, human_us
from perfmodel.errors import PerfmodelError, UsageError
from perfmodel.prediction.types import Result
from perfmodel.timeline.offered import (
    BatchSteps,
    LoadLatency,
    Service,
    batched_latency,
    require_rate,
)

_SHRINKS, _SIZES, _ROUNDS = 4, 5, 9
"""Sizes of batches that are predicted: each a quarter of the next; halvings of a range of rates."""
_LIMITED, _FULL = (1e-6,), (0.005, 0.01, 0.02, *((at + 1) / 25 for at in range(24)))
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
        found = [self._best(steps, size, self.p99_us) for size in known]
        met = [each for each in found if _p99_us(each) <= self.p99_us]
        if not met:
            best = min(found, key=_p99_us)
            why = f"{human_us(best.p99_us)} at best" if best.p99_us else best.note
            note = f"not 99 % within {human_us(self.p99_us)}: {why}"
            note += ": try a smaller --batch" if self.max_delay_us is None else ""
            return replace(best, mean_us=None, p50_us=None, p99_us=None, note=note)
        if self.rate_per_s is None:
            return max(met, key=lambda each: each.rate_per_s)
        return min(met, key=lambda each: each.load_frac)

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

    def _best(self, steps: BatchSteps, size: int, p99_us: float) -> LoadLatency:
        """At the rate asked for, else at the largest within the latency, or where it is least."""
        if self.rate_per_s is not None:
            return self._at(steps, self.rate_per_s, size)
        most_per_s = size / float(steps.period_us(size)) * US_PER_S
        loads = _FULL if self.max_delay_us is None else _LIMITED
        found = [self._at(steps, load * most_per_s, size) for load in loads]
        met = [at for at, each in enumerate(found) if _p99_us(each) <= p99_us]
        if not met:
            return min(found, key=_p99_us)
        low, high = (*loads, 1.0)[met[-1] : met[-1] + 2]
        best = found[met[-1]]
        for _ in range(_ROUNDS):
            middle = (low + high) / 2
            tried = self._at(steps, middle * most_per_s, size)
            if _p99_us(tried) <= p99_us:
                low, best = middle, tried
            else:
                high = middle
        return best


def _p99_us(load: LoadLatency) -> float:
    return inf if load.p99_us is None else load.p99_us
