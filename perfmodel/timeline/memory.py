"""The memory that a rank's allocators held over time, where its profile records allocations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.base.arrays import Floats, Ints, distinct
from perfmodel.trace.columns import NONE, RankTrace
from perfmodel.trace.window import Steps

if TYPE_CHECKING:
    import pandas as pd

MAX_POINTS = 500
"""Of a series; of each stretch between two of them the largest value stands."""


@dataclass(frozen=True)
class MemoryTimeline:
    """What one device's allocator held, after each of its events.

    Times are of the rank's clock. `reserved_bytes` is -1 where the file gives no totals; then
    `allocated_bytes` is what came on top of the least that was held (`is_relative`).
    """

    device: str
    at_us: Floats
    allocated_bytes: Ints
    reserved_bytes: Ints
    is_relative: bool
    events: int
    peak_step: str
    """The step in which the peak is reached, '' where it is between steps."""

    def to_frame(self) -> pd.DataFrame:
        import pandas as pd

        names = ("device", "at_us", "allocated_bytes", "reserved_bytes")
        return pd.DataFrame({name: getattr(self, name) for name in names})

    def to_dict(self) -> dict[str, Any]:
        """The peak and a series of at most `MAX_POINTS`."""
        peak = int(np.argmax(self.allocated_bytes))
        held = self.allocated_bytes
        kept = np.arange(len(held))
        if len(held) > MAX_POINTS:  # the first, the last, and the largest of stretches between
            edges = np.linspace(0, len(held), MAX_POINTS - 1).astype(np.int64).tolist()
            largest = [low + int(np.argmax(held[low:high])) for low, high in pairwise(edges)]
            kept = distinct(np.array([0, *largest, len(held) - 1], np.int64))
        has_totals = not self.is_relative
        return {
            "device": self.device,
            "events": self.events,
            "is_relative": self.is_relative,
            "peak_allocated_bytes": int(self.allocated_bytes[peak]),
            "peak_at_us": round(float(self.at_us[peak]), 3),
            "peak_step": self.peak_step,
            "peak_reserved_bytes": int(self.reserved_bytes.max()) if has_totals else None,
            "first_allocated_bytes": int(self.allocated_bytes[0]),
            "last_allocated_bytes": int(self.allocated_bytes[-1]),
            "at_us": np.round(self.at_us[kept], 3).tolist(),
            "allocated_bytes": self.allocated_bytes[kept].tolist(),
            "reserved_bytes": self.reserved_bytes[kept].tolist() if has_totals else None,
        }


def shown_timelines(timelines: Sequence[MemoryTimeline]) -> list[MemoryTimeline]:
    """Those of GPUs; of a process without one, the host's."""
    return [each for each in timelines if each.device != "cpu"] or list(timelines)


def memory_timelines(rank: RankTrace, steps: Steps) -> list[MemoryTimeline]:
    """One per device that memory was allocated on, GPUs first."""
    result = []
    for name, of in rank.memory.by_device().items():
        is_relative = bool((of.allocated_bytes == NONE).any())
        held = np.cumsum(of.size_bytes)
        allocated = held - min(int(held.min()), 0) if is_relative else of.allocated_bytes
        at = float(of.at_us[int(np.argmax(allocated))])
        inside = np.flatnonzero((steps.start_us <= at) & (at <= steps.end_us))
        step = steps.names[inside[0]] if len(inside) else ""
        reserved = of.reserved_bytes
        result.append(
            MemoryTimeline(name, of.at_us, allocated, reserved, is_relative, len(of), step)
        )
    return sorted(result, key=lambda each: each.device == "cpu")
