"""Whether a change helped: figures of like ranks against limits and the steps' own scatter."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from perfmodel.base.units import BYTES_PER_GB, human_us
from perfmodel.errors import UsageError

STEP, MEMORY = "step", "memory"
_LIMIT = re.compile(r"\s*(\w[\w ./+-]*?)\s*=\s*(\d+(?:\.\d+)?)\s*%\s*")
ROUNDING_FRAC = 5e-4
"""What is shown as 0.0 %."""
MAX_OVER, MAX_ROWS = 4, 12
"""Figures over their limit that a verdict names, and rows of a comment."""


class Outcome(StrEnum):
    """What became of a figure that has a limit, or of the step."""

    OVER = "over"
    """It grew by more than the limit and by more than steps scatter."""
    GREW = "grew"
    SAME = "unchanged"
    """What changed is within the steps' own scatter."""
    BETTER = "better"
    UNKNOWN = "not recorded"


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
        change, scatter = self.b - self.a, (self.scatter_frac or 0.0) * self.a
        if abs(change) <= max(scatter, ROUNDING_FRAC * self.a):
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
        return [
            "-"
            if value is None
            else f"{value / BYTES_PER_GB:,.2f} GB"
            if self.figure == MEMORY
            else human_us(value)
            for value in (self.a, self.b)
        ]

    def to_dict(self) -> dict[str, Any]:
        digits = {"a": 4, "b": 4, "change_frac": 6, "scatter_frac": 6}
        answer = vars(self) | {"change_frac": self.change_frac, "outcome": self.outcome.value}
        return answer | {
            key: None if answer[key] is None else round(answer[key], places)
            for key, places in digits.items()
        }


def verdict(step: Held | None, held: Sequence[Held]) -> str:
    """In one line: slower, faster or neither, and what is over its limit."""
    parts = [] if step is None else [_step_text(step)]
    over = [each for each in held if each.outcome is Outcome.OVER]
    several = len({each.rank for each in held}) > 1
    named = [
        f"{each.figure}{f' of rank {each.rank}' if several else ''} {each.change_text} "
        f"(limit {100 * (each.limit_frac or 0):g} %)"
        for each in over[:MAX_OVER]
    ]
    if len(over) > MAX_OVER:
        named.append(f"{len(over) - MAX_OVER} more")
    if named:
        parts.append(f"over the limit: {', '.join(named)}")
    elif held:
        parts.append("no limit crossed")
    return "; ".join(parts)


def _step_text(step: Held) -> str:
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


def markdown(
    line: str, held: Sequence[Held], moved: Sequence[tuple[str, str]], notes: Sequence[str]
) -> str:
    """A comment for a pull request: the verdict, limits, what moved most, and notes."""
    lines = [f"**{_plain(line)}**", ""]
    shown = [each for each in held if each.rank == held[0].rank or each.outcome is Outcome.OVER]
    if shown:
        lines += ["| figure | rank | A | B | change | scatter | limit | |", "|---" * 8 + "|"]
        for each in shown[:MAX_ROWS]:
            shares = (
                "-" if share is None else f"{100 * share:.3g} %"
                for share in (each.scatter_frac, each.limit_frac)
            )
            cells = [each.figure, str(each.rank), *each.size_texts, each.change_text, *shares]
            lines.append(f"| {' | '.join(map(_plain, [*cells, each.outcome.value]))} |")
        lines.append("")
    lines += [f"- {_plain(name)}: {text}" for name, text in moved]
    lines += [f"- {_plain(text)}" for text in notes]
    return "\n".join(lines).rstrip() + "\n"


def _plain(text: str) -> str:
    """Nothing that a name in a trace could break a table or a line with."""
    return "".join(c if c.isprintable() else "?" for c in text).replace("|", "\\|")
