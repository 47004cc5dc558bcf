"""A few milliseconds of fixed work beside whatever is measured: does the machine keep its speed?

Hosts are shared: what took 10 ms may take 13 ms some minutes later, with nothing else running here.
The same work, done again between measurements, tells that apart from what is measured. Its four
parts are what a step is made of; all of it runs on the CPU, with the threads that PyTorch has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

import numpy as np

from perfmodel.collect.backend import Backend
from perfmodel.collect.records import PARTS, REFERENCE_COLUMNS
from perfmodel.collect.timing import call_us, robust_us, summarize

SIDE = 256
"""Of the square fp32 matrices that are multiplied: three of them fit into one core's L2."""
CACHE_VALUES, CACHE_PASSES = 1 << 20, 2
"""fp32 values updated in place: 4 MiB, more than L2 and less than L3."""
MEMORY_VALUES, MEMORY_WINDOWS = 1 << 25, 16
"""fp32 values, 128 MiB, of which each reading sums the next window: in no cache any more."""
PYTHON_CALLS = 3_000
REPEATS = 5
"""Of each part per reading, of which the shortest says how fast the machine is, and all together
how often it is interrupted."""


class Reference:
    """The work on one machine; its tensors are made once."""

    def __init__(self, backend: Backend) -> None:
        torch = backend.torch
        self._memory = torch.full((MEMORY_VALUES,), 0.5)
        self._next = cycle(self._memory.chunk(MEMORY_WINDOWS))
        cached, factor = torch.full((CACHE_VALUES,), 0.5), torch.full((SIDE, SIDE), 0.5)
        product = torch.empty(SIDE, SIDE)
        self._work: dict[str, Callable[[], Any]] = {
            "compute": lambda: torch.mm(factor, factor, out=product),
            "cache": lambda: [cached.mul_(1.0) for _ in range(CACHE_PASSES)],
            "memory": lambda: next(self._next).sum(),
            "python": _interpret,
        }

    def read_us(self) -> list[float]:
        """Microseconds now: of each of `PARTS` the shortest of `REPEATS`, then all of them."""
        taken = [[call_us(self._work[part]) for _ in range(REPEATS)] for part in PARTS]
        return [round(value, 2) for value in (*map(min, taken), sum(map(sum, taken)))]

    def evict(self) -> None:
        """Read all of the memory, as a step in between would empty the caches."""
        self._memory.sum()


def _interpret() -> int:
    """Calls, look-ups and sums, as between the operators of a step."""
    total, seen = 0, {}
    for number in range(PYTHON_CALLS):
        seen[number & 63] = total
        total += len(seen)
    return total


def reference_columns(readings_us: Sequence[Sequence[float]]) -> dict[str, float]:
    """The columns of a table: what each part takes in the long run; none without readings.

    That is its robust time, as often interrupted as the work as a whole: a step lasts long enough
    to be interrupted each time, a part of the reference does not.
    """
    if not readings_us:
        return {}
    parts_us, longer = _split(readings_us)
    return {
        name: round(longer * robust_us(part), 2)
        for name, part in zip(REFERENCE_COLUMNS, parts_us, strict=True)
    }


def reference_record(readings_us: Sequence[Sequence[float]]) -> dict[str, Any]:
    """The reference in a record: how many readings, and what each part took."""
    if not readings_us:
        return {"readings": 0}
    parts_us, longer = _split(readings_us)
    figures = {part: summarize(own) for part, own in zip(PARTS, parts_us, strict=True)}
    return {"readings": len(readings_us), "interrupted_ratio": round(longer, 4), **figures}


def _split(readings_us: Sequence[Sequence[float]]) -> tuple[Any, float]:
    """The parts of all readings, and how much longer all took than the shortest, robustly too."""
    *parts_us, whole_us = np.asarray(readings_us, np.float64).T
    shortest_us = REPEATS * np.sum(parts_us, axis=0)
    return parts_us, robust_us(whole_us / shortest_us)
