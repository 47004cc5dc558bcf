"""The one step that stands for several."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfmodel.attribution.rank import StepBreakdown


def median_step(steps: Sequence[StepBreakdown]) -> StepBreakdown:
    """The step whose duration is closest to the median; the first of equals."""
    middle = median(step.accounting.step_us for step in steps)
    return min(steps, key=lambda step: abs(step.accounting.step_us - middle))
