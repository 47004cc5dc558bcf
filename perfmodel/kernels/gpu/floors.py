"""What a time contains beside the kernel, by how it was measured.

A time is the longer of a floor, for which the host alone is the reason, and the kernel behind a
fixed offset: `max(floor, offset + kernel)`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.errors import ModelError
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import Floats


@dataclass(frozen=True)
class Floor:
    """Microseconds: the shortest time such a measurement shows, and what adds to a long kernel."""

    floor_us: float
    offset_us: float


TIMINGS = {
    "profiler_kernel": Floor(0.0, 0.0),
    "profiler_repeated": Floor(0.0, 0.0),
    "trt_layer_profiler": Floor(0.0, 0.0),
    "cuda_graph_replay": Floor(0.0, 1.0),
    "host_loop_mean": Floor(6.0, 0.0),
    "event_single_call": Floor(28.0, 9.0),
    "event_loop_eager": Floor(60.0, 0.0),
    "host_wall_sync": Floor(20.0, 15.0),
}
"""Typical figures; a fitted model has its own, since the host decides them.

`event_single_call`: events around one call start the clock before the host has launched.
"""

_CALLS = {"linear": 1.7, "layer_norm": 1.7, "conv2d": 2.2}
"""Host work of one call against an elementwise op's, for timings that contain it."""


def floors_of(rows: Rows) -> tuple[Floats, Floats]:
    """(floor_us, offset_us) per row; raises `ModelError` for an unknown `timing`."""
    known: dict[tuple[str, str], tuple[float, float]] = {}
    for key in set(zip(rows.timing, rows.op, strict=True)):
        timing, op = key
        if timing not in TIMINGS:
            raise ModelError(f"unknown timing {timing!r}; one of {', '.join(sorted(TIMINGS))}")
        usual = TIMINGS[timing]
        known[key] = (usual.floor_us * _CALLS.get(op, 1.0), usual.offset_us)
    pairs = [known[key] for key in zip(rows.timing, rows.op, strict=True)]
    columns = np.array(pairs, np.float64).reshape(len(rows), 2)
    return columns[:, 0], columns[:, 1]


_SHARPNESS = 8.0


def measured_us(kernel_us: Floats, floor_us: Floats, offset_us: Floats) -> Floats:
    """The time that a measurement shows: a maximum with a slightly rounded corner."""
    long = offset_us + kernel_us
    larger = np.maximum(long, floor_us)
    smaller = np.minimum(long, floor_us)
    return larger * (1.0 + (smaller / larger) ** _SHARPNESS) ** (1.0 / _SHARPNESS)
