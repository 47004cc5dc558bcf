"""How long one call takes: cold or warm caches, on a CPU or a GPU, with the launch hidden."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from perfmodel.collect.backend import Backend
from perfmodel.collect.machine import describe_cpu
from perfmodel.units import NS_PER_US, US_PER_MS

GPU_FLUSH_BYTES = 512_000_000
"""Beyond any last-level cache, and long enough that the host runs ahead of the GPU."""
CPU_FLUSH_MULTIPLE = 2
DEFAULT_CPU_CACHE_BYTES = 64_000_000
CACHES = ("cold", "warm")


class Sample(NamedTuple):
    """One timed call: its duration, and for how long the host was in the call."""

    duration_us: float
    host_us: float


class Stopwatch:
    """Times calls on one backend; `timing` is the measurement table's word for how."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.timing = "event_single_call" if backend.is_gpu else "host_wall_sync"
        size = GPU_FLUSH_BYTES if backend.is_gpu else _cpu_flush_bytes()
        torch = backend.torch
        self._flushed = torch.zeros(size, dtype=torch.uint8, device=backend.device)

    def samples(self, run: Callable[[], Any], cache: str, count: int) -> list[Sample]:
        """`count` calls of `run`, each after the caches were emptied.

        With `cache` `warm`, an untimed call comes between, which leaves its operands in them.
        """
        take = self._gpu if self._backend.is_gpu else self._cpu
        return take(run, cache == "warm", count)

    def _cpu(self, run: Callable[[], Any], warm: bool, count: int) -> list[Sample]:
        taken = []
        for _ in range(count):
            if warm:
                run()
            else:
                self._flushed.add_(1)
            before_ns = time.perf_counter_ns()
            run()
            duration_us = (time.perf_counter_ns() - before_ns) / NS_PER_US
            taken.append(Sample(duration_us, duration_us))
        return taken

    def _gpu(self, run: Callable[[], Any], warm: bool, count: int) -> list[Sample]:
        """Events around each call, queued behind the flush, so that no launch delays it."""
        event = self._backend.torch.cuda.Event
        timed = []
        for _ in range(count):
            self._flushed.add_(1)
            if warm:
                run()
            start, end = event(enable_timing=True), event(enable_timing=True)
            start.record()
            before_ns = time.perf_counter_ns()
            run()
            host_us = (time.perf_counter_ns() - before_ns) / NS_PER_US
            end.record()
            timed.append((start, end, host_us))
        self._backend.synchronize()
        return [Sample(a.elapsed_time(b) * US_PER_MS, host_us) for a, b, host_us in timed]


def _cpu_flush_bytes() -> int:
    caches = describe_cpu()["cache_bytes"]
    return CPU_FLUSH_MULTIPLE * max(caches.values(), default=DEFAULT_CPU_CACHE_BYTES)
