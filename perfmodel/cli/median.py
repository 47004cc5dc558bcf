"""The one step that stands for several."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfmodel.attribution.breakdown import StepBreakdown
    from perfmodel.prediction import Result


def median_step(steps: Sequence[StepBreakdown]) -> StepBreakdown:
    """The step whose duration is closest to the median; the first of equals."""
    middle = median(step.accounting.step_us for step in steps)
    return min(steps, key=lambda step: abs(step.accounting.step_us - middle))


def median_mark(result: Result) -> int:
    """Row of the graph's marks of the step of the slowest rank that is closest to its median.

    Warm-up does not count where there are other steps.
    """
    steps = result.rank.steps
    steady = [i for i, step in enumerate(steps) if not step.warmup] or list(range(len(steps)))
    closest = min(steady, key=lambda i: abs(steps[i].step_us - result.step_us))
    ranks = result.timeline.graph.marks.rank.tolist()
    return [row for row, rank in enumerate(ranks) if rank == result.rank.rank][closest]
