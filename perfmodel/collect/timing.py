"""Clocks, and the one robust estimator that calibration and truth share."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from perfmodel.collect.backend import Backend
from perfmodel.units import NS_PER_US

LOW_QUANTILE = 0.10


def robust_us(samples_us: Sequence[float]) -> float:
    """The 10th percentile of repeated durations, in microseconds.

    On a shared machine interruptions only ever add time, so low quantiles of interleaved repeats
    agree to a few percent where medians move by tens.
    """
    return float(np.quantile(np.asarray(samples_us, dtype=np.float64), LOW_QUANTILE))


def summarize(samples_us: Sequence[float]) -> dict[str, float]:
    """Robust value, median, 90th percentile and relative spread of repeated durations."""
    samples = np.asarray(samples_us, dtype=np.float64)
    low, middle, high = np.quantile(samples, [LOW_QUANTILE, 0.5, 0.9])
    return {
        "p10_us": round(float(low), 4),
        "median_us": round(float(middle), 4),
        "p90_us": round(float(high), 4),
        "spread_frac": round(float((high - low) / middle), 4) if middle else 0.0,
    }


def halves_frac(rounds_us: Sequence[Sequence[float]]) -> float | None:
    """By how much the robust times of the even and of the odd rounds differ, relatively."""
    if len(rounds_us) < 2:
        return None
    even, odd = (
        robust_us([value for taken in rounds_us[first::2] for value in taken]) for first in (0, 1)
    )
    return round(abs(even - odd) / min(even, odd), 4)


def time_steps(
    backend: Backend, step: Callable[[int], None], count: int, *, start: int = 0
) -> list[float]:
    """Wall time of each of `count` steps in microseconds, the device idle before and after each."""
    backend.synchronize()
    return [time_step(backend, step, number) for number in range(start, start + count)]


def time_step(backend: Backend, step: Callable[[int], None], number: int) -> float:
    """Wall time of `step(number)` in microseconds, until the device is done."""
    before_ns = time.perf_counter_ns()
    step(number)
    backend.synchronize()
    return (time.perf_counter_ns() - before_ns) / NS_PER_US


def time_loop(
    backend: Backend, step: Callable[[int], None], count: int, *, start: int = 0
) -> float:
    """Mean wall time per step in microseconds of `count` steps with one wait at the end.

    On a GPU the host may run ahead: this, not the synchronised step, is the throughput.
    """
    backend.synchronize()
    before_ns = time.perf_counter_ns()
    for number in range(start, start + count):
        step(number)
    backend.synchronize()
    return (time.perf_counter_ns() - before_ns) / NS_PER_US / count
