"""What a what-if makes of a time: how much shorter it gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Timed(Protocol):
    """A step, or a rank."""

    @property
    def step_us(self) -> float: ...


@dataclass(frozen=True)
class Change:
    """What a what-if makes of one time. Microseconds."""

    baseline_us: float
    what_if_us: float

    @property
    def gain_us(self) -> float:
        """How much shorter; negative where it gets longer."""
        return self.baseline_us - self.what_if_us

    @property
    def gain_frac(self) -> float | None:
        """Of the baseline."""
        return self.gain_us / self.baseline_us if self.baseline_us else None


def changes(before: Sequence[Timed] | None, after: Sequence[Timed]) -> list[Change | None]:
    """From each one's step to the other's; None where there is nothing `before`."""
    if before is None:
        return [None] * len(after)
    return [Change(a.step_us, b.step_us) for a, b in zip(before, after, strict=True)]


def gain_dict(change: Change | None) -> dict[str, float | None]:
    return {
        "gain_us": None if change is None else rounded(change.gain_us),
        "gain_frac": None if change is None else rounded(change.gain_frac),
    }


def change_dict(change: Change | None) -> dict[str, float | None]:
    """A gain beside what it is of."""
    before_us = None if change is None else rounded(change.baseline_us)
    return {"baseline_us": before_us, **gain_dict(change)}


def rounded(value: float | None) -> float | None:
    return None if value is None else round(float(value), 4)
