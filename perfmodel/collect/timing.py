"""Clocks, the robust estimator of calibration and truth, tables."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from perfmodel.base.files import write_text
from perfmodel.base.units import NS_PER_US, US_PER_MS
from perfmodel.collect.backend import Backend, describe_cpu

COLUMNS = (
    *("op", "device", "dtype", "direction", "timing", "cache", "variant", "b", "m", "n", "k"),
    *("layout", "bias", "rows", "cols", "elements", "tensors", "batch", "in_channels"),
    *("out_channels", "kernel_size", "input_size", "stride", "padding", "hash_size", "dim"),
    *("pooling", "zipf_alpha", "tokens", "pairs", "heads"),
    *("head_dim", "value_dim", "max_length", "lengths", "reads", "writes", "flop_per_element"),
    *("duration_us", "median_us", "p90_us", "spread_frac", "repeats", "host_us", "unique_rows"),
)
"""Of kernels; empty where a dim does not apply. `duration_us` is the robust
estimate (10th percentile of interleaved repeats)."""


def write_table(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write `rows` to the CSV file `path`, whole or not at all; packed if it ends in `.gz`."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerows([columns, *([_text(row.get(name)) for name in columns] for row in rows)])
    write_text(path, buffer.getvalue())


DIGITS = 10


def _text(value: Any) -> str:
    """`value` as it stands in a file."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.{DIGITS}g}"
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


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


def call_us(run: Callable[[], Any]) -> float:
    """Microseconds that the host is in one call of `run`."""
    before_ns = time.perf_counter_ns()
    run()
    return (time.perf_counter_ns() - before_ns) / NS_PER_US


def time_step(backend: Backend, step: Callable[[int], None], number: int) -> float:
    """Wall time of `step(number)` in microseconds, until the device is done."""
    before_ns = time.perf_counter_ns()
    step(number)
    backend.synchronize()
    return (time.perf_counter_ns() - before_ns) / NS_PER_US


GPU_FLUSH_BYTES = 512_000_000
"""Beyond any last-level cache, and long enough that the host runs ahead of the GPU."""
CPU_FLUSH_MULTIPLE = 2
DEFAULT_CPU_CACHE_BYTES = 64_000_000
CACHES = ("cold", "warm")


Sample: TypeAlias = tuple[float, float]
"""Of one timed call its duration, and for how long the host was in the call, microseconds."""


class Stopwatch:
    """Times calls on one backend; `timing` is the measurement table's word for how."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.timing = "event_single_call" if backend.is_gpu else "host_wall_sync"
        size = GPU_FLUSH_BYTES
        if not backend.is_gpu:
            caches = describe_cpu()["cache_bytes"]
            size = CPU_FLUSH_MULTIPLE * max(caches.values(), default=DEFAULT_CPU_CACHE_BYTES)
        torch = backend.torch
        self._flushed = torch.zeros(size, dtype=torch.uint8, device=backend.device)

    def flush(self) -> None:
        """Empty the caches, which keeps a GPU busy while its host runs ahead."""
        self._flushed.add_(1)

    def before(self, run: Callable[[], Any], cache: str) -> Callable[[], Any]:
        """What comes before each call of `run`: on `warm` caches, a call that leaves its operands
        in them."""

        def warmed_behind_work() -> None:
            self.flush()
            run()

        if cache != "warm":
            return self.flush
        return warmed_behind_work if self._backend.is_gpu else run

    def samples(
        self, run: Callable[[], Any], count: int, before: Callable[[], Any]
    ) -> list[Sample]:
        """`count` calls of `run`, each after `before`: on a GPU by events, so that no launch
        delays a call which is queued behind work."""
        event, taken, timed = self._backend.torch.cuda.Event, [], []
        for _ in range(count):
            before()
            if not self._backend.is_gpu:
                duration_us = call_us(run)
                taken.append((duration_us, duration_us))
                continue
            start, end = event(enable_timing=True), event(enable_timing=True)
            start.record()
            host_us = call_us(run)
            end.record()
            timed.append((start, end, host_us))
        self._backend.synchronize()
        return taken + [(a.elapsed_time(b) * US_PER_MS, host_us) for a, b, host_us in timed]
