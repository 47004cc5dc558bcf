"""The interval of a step from those of the pieces on its critical path."""

from __future__ import annotations

import numpy as np

from perfmodel.attribution.path import Walker, critical_path
from perfmodel.prediction.scheduled import Scheduled
from perfmodel.trace.columns import NONE

HOST_HALF_FRAC = 0.15
"""assumed: half the 90 % interval of host time taken from another machine's profile."""
HOST = "host"


def path_interval(found: Scheduled, rank: int) -> tuple[float, float]:
    """90 % interval of a rank's median step, microseconds.

    The error of a family's model on a device is one for all its pieces, so half-widths add up
    within a family; families are independent, so they add up in squares. Only what lies on the
    critical path counts.
    """
    timeline, piece = found.timeline, found.built.piece
    durations, families = found.durations, found.families
    marks = np.flatnonzero(timeline.graph.marks.rank == rank)
    step_us = timeline.step_us
    mark = int(marks[np.argsort(step_us[marks])[len(marks) // 2]])
    below: dict[str, float] = {}
    above: dict[str, float] = {}
    for part in critical_path(timeline, mark, Walker.of(timeline)):
        taken = part.end_us - part.start_us
        at = int(piece[part.node]) if part.edge == NONE else NONE
        if at == NONE:
            family, low, high = HOST, HOST_HALF_FRAC, HOST_HALF_FRAC
        else:
            family, middle = families[at], max(float(durations.duration_us[at]), 1e-9)
            low = 1 - float(durations.low_us[at]) / middle
            high = float(durations.high_us[at]) / middle - 1
        below[family] = below.get(family, 0.0) + low * taken
        above[family] = above.get(family, 0.0) + high * taken
    middle_us = float(step_us[mark])
    return (
        max(0.0, middle_us - float(np.hypot.reduce([0.0, *below.values()]))),
        middle_us + float(np.hypot.reduce([0.0, *above.values()])),
    )
