"""Timing in rounds: every work next to its reference, so that a ratio holds on any machine.

The clock is processor time of this process and of those it started, user and system: what other
processes take of the machine does not count. A sample of a work is followed by one of its
reference that takes as long, so what disturbs (a busy neighbour on the core, its caches, a slower
clock) disturbs both; the figure is the median of the pairs' ratios.
"""

from __future__ import annotations

import gc
import os
import resource
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

MIN_S = 0.01
"""A sample repeats its work until it takes this long; one of a reference, as long as the work."""
ROUND_S = 0.1
"""A round takes pairs of samples until they took this long together."""


Key = tuple[str, str]
"""Work and reference."""


@dataclass(frozen=True)
class Work:
    """Something to time, and the name of the reference that it is divided by."""

    name: str
    run: Callable[[], object]
    reference: str


@dataclass(frozen=True)
class Figure:
    """What a work took: over its reference, how far the pairs are apart, and in milliseconds."""

    name: str
    reference: str
    ratio: float
    spread_frac: float
    """Half the distance of the quartiles of the pairs' ratios, over their median."""
    best_ms: float

    @property
    def key(self) -> Key:
        """What it is compared by."""
        return self.name, self.reference


def on_one_thread() -> None:
    """Keep libraries that load after this to one thread: processor time is then what work costs."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[name] = "1"


def processor_s() -> float:
    """Processor seconds of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


class Sampler:
    """One work or reference; its first run, which warms up, does not count."""

    def __init__(self, run: Callable[[], object], least_s: float = MIN_S) -> None:
        self._run = run
        self._count = 1
        run()
        once_s = max(self(), 1e-6)
        self._count = max(1, round(least_s / once_s))
        self.sample_s = self._count * once_s

    def __call__(self) -> float:
        """Seconds of one run."""
        start = processor_s()
        for _ in range(self._count):
            self._run()
        return (processor_s() - start) / self._count


def measure(
    works: Iterable[Work], references: Mapping[str, Callable[[], object]], rounds: int
) -> list[Figure]:
    """Every work over its reference in `rounds` interleaved rounds."""
    works = list(works)
    pairs = []
    for work in works:
        sampler = Sampler(work.run)
        pairs.append((sampler, Sampler(references[work.reference], sampler.sample_s)))
    took_s: list[list[tuple[float, float]]] = [[] for _ in works]
    for _ in range(rounds):
        for found, pair in zip(took_s, pairs, strict=True):
            found += _round(*pair)
    return [_figure(work, found) for work, found in zip(works, took_s, strict=True)]


def _round(work: Sampler, reference: Sampler) -> list[tuple[float, float]]:
    """Pairs of seconds: of the work, of its reference."""
    gc.collect()
    took_s: list[tuple[float, float]] = []
    start = processor_s()
    while not took_s or processor_s() - start < ROUND_S:
        took_s.append((work(), reference()))
    return took_s


def _figure(work: Work, took_s: list[tuple[float, float]]) -> Figure:
    ratios = [own / other for own, other in took_s]
    low, ratio, high = statistics.quantiles(ratios * 2, n=4, method="inclusive")
    best_ms = min(own for own, _ in took_s) * 1e3
    return Figure(work.name, work.reference, ratio, (high - low) / 2 / ratio, best_ms)
