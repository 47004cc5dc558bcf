"""The steps that stand for all: the median, and what it leaves out."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

from rich.console import Console

from perfmodel.cli.tables import counted, say

if TYPE_CHECKING:
    from perfmodel.attribution.rank import StepBreakdown

STEADY = "steady"


def median_step(steps: Sequence[StepBreakdown]) -> StepBreakdown:
    """The step whose duration is closest to the median of the steady ones; the first of equals."""
    steady = [step for step in steps if step.role == STEADY] or steps
    middle = median(step.accounting.step_us for step in steady)
    return min(steady, key=lambda step: abs(step.accounting.step_us - middle))


def with_role(name: str, role: str) -> str:
    """A step's name in a table: what it is where it is not steady."""
    return name if role == STEADY else f"{name} ({role})"


def say_left_out(console: Console, steps: Sequence[tuple[str, str, float]]) -> None:
    """What medians leave out of the name, role and duration of each step; nothing where nothing."""
    steady_us = [step_us for _, role, step_us in steps if role == STEADY]
    if not steady_us or len(steady_us) == len(steps):
        return
    middle_us = median(steady_us)
    left_out = ", ".join(
        f"{name} ({role}, {step_us / middle_us:.1f} times the median)"
        for name, role, step_us in steps
        if role != STEADY
    )
    count = f"{len(steady_us)} of {counted(len(steps), 'step')}"
    say(console, f"Medians are of {count}: left out {left_out}.")
