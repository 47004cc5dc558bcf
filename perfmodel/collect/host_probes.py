"""What a step pays beside its operators: first touch of memory, parallel regions, calls.

Rows of the table of `collect ops`, with the configuration `probe`. A CPU allocator hands large
blocks back to the operating system, and each page of the next one costs a page fault; a pool's
threads fall asleep between parallel regions, and waking them costs.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from perfmodel.collect.backend import Backend
from perfmodel.collect.dispatch import page_faults
from perfmodel.collect.timing import Budget, summarize
from perfmodel.units import NS_PER_US

CONFIGURATION = "probe"
PAGES = (16, 64, 256, 640, 1_024, 4_096, 16_384)
"""Sizes touched, in pages of the operating system."""
ELEMENTS = (1_024, 32_768, 32_769, 49_152, 65_536, 131_072, 1_048_576)
"""Below, at and above 32768 elements, where PyTorch begins to share elementwise work out."""
IDLE_US = (0, 100, 1_000, 10_000)
ROUNDS, CALLS = 20, 100


class Probe(NamedTuple):
    """What is timed: `run`, `calls` times after `prepare`, with the row's parameters."""

    op: str
    parameters: dict[str, Any]
    prepare: Callable[[], Any]
    run: Callable[[Any], Any]
    calls: int = 1


def probe_rows(backend: Backend, device: str, budget: Budget) -> list[dict[str, Any]]:
    """All probes in turns, a row each; fewer repeats where the budget ends."""
    pages = _pages() if hasattr(mmap, "MAP_ANONYMOUS") else ()
    probes = [*_calls(backend), *pages, *_regions(backend)]
    taken: list[list[tuple[float, int]]] = [[] for _ in probes]
    for number in range(ROUNDS):
        if number and budget.is_over:
            break
        for probe, samples in zip(probes, taken, strict=True):
            samples.append(_time(probe))
    backend.torch.set_num_threads(backend.threads)
    return [_row(probe, samples, device) for probe, samples in zip(probes, taken, strict=True)]


def _time(probe: Probe) -> tuple[float, int]:
    """Microseconds per call and page faults."""
    given = probe.prepare()
    faults = page_faults()
    before_ns = time.perf_counter_ns()
    for _ in range(probe.calls):
        probe.run(given)
    after_ns = time.perf_counter_ns()
    return (after_ns - before_ns) / NS_PER_US / probe.calls, page_faults() - faults


def _row(probe: Probe, samples: list[tuple[float, int]], device: str) -> dict[str, Any]:
    figures = summarize([took_us for took_us, _ in samples])
    return {
        "configuration": CONFIGURATION,
        "op": probe.op,
        "phase": CONFIGURATION,
        "scalars": probe.parameters,
        "count": 1,
        "page_faults": float(np.median([faults for _, faults in samples])),
        "device": device,
        "timing": "host_wall_sync",
        "duration_us": figures["p10_us"],
        "median_us": figures["median_us"],
        "p90_us": figures["p90_us"],
        "repeats": len(samples),
    }


def _calls(backend: Backend) -> Iterator[Probe]:
    """An empty call, and one operator as Python calls it and as a dispatch mode calls it."""
    value = backend.torch.ones(4, 4)
    detach = backend.torch.ops.aten.detach.default
    calls: dict[str, Callable[[Any], Any]] = {
        "nothing": lambda given: None,
        "method": lambda given: value.detach(),
        "overload": lambda given: detach(value),
    }
    for by, call in calls.items():
        yield Probe("call_operator", {"by": by}, lambda: None, call, CALLS)


def _pages() -> Iterator[Probe]:
    """First touch of fresh memory, touch of the same memory again, and handing it back."""
    for pages in PAGES:
        size = pages * mmap.PAGESIZE
        huge = getattr(mmap, "MADV_HUGEPAGE", None)
        for advised in (False, True) if huge is not None else (False,):
            advice = huge if advised else None
            about = {"bytes": size, "pages": pages, "huge_pages_asked": advised}
            fresh, touched = (partial(_mapped, size, advice, touch) for touch in (False, True))
            yield Probe("page_fault", about, fresh, _touch)
            yield Probe("page_touch", about, touched, _touch)
            yield Probe("page_release", about, touched, mmap.mmap.close)


def _mapped(size: int, advice: int | None, touch: bool) -> mmap.mmap:
    """`size` bytes mapped anew, not backed by a file."""
    mapped = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if advice is not None:
        mapped.madvise(advice)
    if touch:
        _touch(mapped)
    return mapped


def _touch(mapped: mmap.mmap) -> None:
    """Write one byte of each page."""
    np.frombuffer(mapped, np.uint8)[:: mmap.PAGESIZE] = 1


def _regions(backend: Backend) -> Iterator[Probe]:
    """An elementwise operator with one and all threads, some time after the last region."""
    torch = backend.torch
    for elements in ELEMENTS:
        source, target = torch.rand(elements), torch.empty(elements)
        for threads in sorted({1, backend.threads}):
            for idle_us in IDLE_US:
                about = {"elements": elements, "threads": threads, "idle_us": idle_us}
                yield Probe(
                    "parallel_region",
                    about,
                    partial(_idle_after_region, torch, source, target, threads, idle_us),
                    lambda given: torch.neg(given[0], out=given[1]),
                )


def _idle_after_region(
    torch: Any, source: Any, target: Any, threads: int, idle_us: int
) -> tuple[Any, Any]:
    """Run a region, then stay away from the pool for `idle_us`, busy on this thread."""
    torch.set_num_threads(threads)
    torch.neg(source, out=target)
    end_ns = time.perf_counter_ns() + idle_us * NS_PER_US
    while time.perf_counter_ns() < end_ns:
        pass
    return source, target
