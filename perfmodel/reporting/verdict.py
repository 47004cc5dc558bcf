"""Whether a change helped: figures of like ranks against limits and the steps' own scatter."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from perfmodel.base.units import BYTES_PER_GB, human_us
from perfmodel.errors import UsageError

MEMORY = "memory"
_LIMIT = re.compile(r"\s*(\w[\w ./+-]*?)\s*=\s*(\d+(?:\.\d+)?)\s*%\s*")
ROUNDING_FRAC = 5e-4
"""What is shown as 0.0 %."""


def parse_limits(text: str) -> dict[str, float]:
    """`step=5%,comm=10%` as shares by figure. Raises `UsageError` for anything else."""
    limits: dict[str, float] = {}
    for part in text.split(",") if text else ():
        found = _LIMIT.fullmatch(part)
        if found is None or found[1] in limits:
            why = "twice" if found else "expected FIGURE=PERCENT%, such as step=5%,comm=10%"
            raise UsageError(f"--fail-over {part.strip()[:60]!r}: {why}")
        limits[found[1]] = float(found[2]) / 100
    return limits


class Outcome(StrEnum):
    """What became of a figure that has a limit, or of the step: over it and more than steps
    scatter, more, within the steps' own scatter, less."""

    OVER = "over"
    GREW = "grew"
    SAME = "unchanged"
    BETTER = "better"
    UNKNOWN = "not recorded"


@dataclass(frozen=True)
class Held:
    """One figure of a pair of ranks against its limit: microseconds per step, or bytes."""

    figure: str
    rank: int
    a: float | None
    b: float | None
    scatter_frac: float | None
    """By which share steps scatter around their median, the larger of both sides."""
    limit_frac: float | None

    @property
    def change_frac(self) -> float | None:
        """Of A; None where one is not known, or A has none of it."""
        return self.b / self.a - 1 if self.a and self.b is not None else None

    @property
    def outcome(self) -> Outcome:
        if self.a is None or self.b is None:
            return Outcome.UNKNOWN
        change = self.b - self.a
        if abs(change) <= max(self.scatter_frac or 0.0, ROUNDING_FRAC) * self.a:
            return Outcome.SAME
        if change < 0:
            return Outcome.BETTER
        is_over = self.limit_frac is not None and change > self.limit_frac * self.a
        return Outcome.OVER if is_over else Outcome.GREW

    @property
    def change_text(self) -> str:
        """`+13.0 %`."""
        if self.a == self.b == 0 or self.outcome is Outcome.UNKNOWN:
            return "-"
        return "from nothing" if self.change_frac is None else f"{100 * self.change_frac:+.1f} %"

    @property
    def size_texts(self) -> list[str]:
        """A's and B's."""
        is_memory = self.figure == MEMORY
        texts = [
            None if us is None else f"{us / BYTES_PER_GB:,.2f} GB" if is_memory else human_us(us)
            for us in (self.a, self.b)
        ]
        return [text or "-" for text in texts]

    def to_dict(self) -> dict[str, Any]:
        answer = vars(self) | {"change_frac": self.change_frac, "outcome": self.outcome.value}
        digits = {"a": 4, "b": 4, "change_frac": 6, "scatter_frac": 6}
        values = ((key, answer[key], places) for key, places in digits.items())
        return answer | {k: None if v is None else round(v, places) for k, v, places in values}


def step_text(step: Held) -> str:
    """What became of the step, with its scatter."""
    sizes = f"step {' to '.join(step.size_texts)}"
    if step.change_frac is None:
        return sizes
    scatter = None if step.scatter_frac is None else f"{100 * step.scatter_frac:.1f} %"
    if step.outcome is Outcome.SAME:
        within = f" is within the steps' own {scatter}" if scatter else ""
        return f"no change: {sizes}, {step.change_text}{within}"
    word = "faster" if step.outcome is Outcome.BETTER else "slower"
    own = f" (steps scatter by {scatter})" if scatter else ""
    return f"{100 * abs(step.change_frac):.1f} % {word}: {sizes}{own}"
