"""Serving in batches with a limit to their delay: latency at a rate, and the batch that serves a
rate, or the largest rate, within a 99th percentile."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf, isfinite

from perfmodel.base.units import US_PER_MS, US_PER_S, human_us
from perfmodel.errors import PerfmodelError, UsageError
from perfmodel.prediction.types import Result
from perfmodel.timeline.batching import BatchSteps, batched_latency
from perfmodel.timeline.offered import LoadLatency, Service, require_rate

_SHRINKS, _SIZES, _ROUNDS = 4, 5, 9
"""Sizes of batches that are predicted: each a quarter of the next; halvings of a range of rates."""


def service_of(result: Result) -> Service:
    """A step as a server of batches sees it."""
    return Service(result.step_us, result.latency_us or result.step_us)


@dataclass(frozen=True)
class Serving:
    """What is asked: batches start when they are full, or when their oldest query has waited for
    `max_delay_us`; at `rate_per_s`, or at the largest rate within `p99_us`; with both, in the batch
    that takes the machine least. Raises `UsageError` for what cannot be asked."""

    max_delay_us: float
    rate_per_s: float | None = None
    p99_us: float | None = None

    def __post_init__(self) -> None:
        if not (self.max_delay_us >= 0 and isfinite(self.max_delay_us)):
            given_ms = self.max_delay_us / US_PER_MS
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
        for size in sorted({batch, *sizes}):
            with suppress(PerfmodelError):
                known[size] = service_of(result_of(size))
        steps = BatchSteps(tuple(known), tuple(known.values()))
        if self.p99_us is None:
            assert self.rate_per_s is not None
            return self._at(steps, self.rate_per_s, max(known))
        found = [self._best(steps, size) for size in known]
        met = [each for each in found if (each.p99_us or inf) <= self.p99_us]
        if not met:
            best = min(found, key=lambda each: each.p99_us or inf)
            why = f"{human_us(best.p99_us)} at best" if best.p99_us else best.note
            note = f"not 99 % within {human_us(self.p99_us)}: {why}"
            return replace(best, mean_us=None, p50_us=None, p99_us=None, note=note)
        if self.rate_per_s is None:
            return max(met, key=lambda each: each.rate_per_s)
        return min(met, key=lambda each: each.load_frac)

    def _at(self, steps: BatchSteps, rate_per_s: float, size: int) -> LoadLatency:
        return replace(batched_latency(steps, rate_per_s, size, self.max_delay_us), batch=size)

    def _best(self, steps: BatchSteps, size: int) -> LoadLatency:
        """At the rate asked for, else at the largest within the latency, or next to none."""
        if self.rate_per_s is not None:
            return self._at(steps, self.rate_per_s, size)
        assert self.p99_us is not None
        low, high = 0.0, size / float(steps.period_us(size)) * US_PER_S
        best = self._at(steps, 0.02 * high, size)
        for _ in range(_ROUNDS):
            middle = (low + high) / 2
            found = self._at(steps, middle, size)
            if (found.p99_us or inf) <= self.p99_us:
                low, best = middle, found
            else:
                high = middle
        return best
