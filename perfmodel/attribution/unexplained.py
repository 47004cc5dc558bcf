"""What part of a step nobody can explain, and saying so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfmodel.attribution.path import Path, Piece
from perfmodel.graph.kinds import NOT_EXPLAINED, Cause
from perfmodel.graph.types import ExecutionGraph
from perfmodel.units import human_us

MOST_UNEXPLAINED_FRAC = 0.05
"""A step of which more is unexplained is said to be so."""
MOST_ERROR_FRAC = 0.015
"""A replay further off than this does not follow from its graph."""


@dataclass(frozen=True)
class Unexplained:
    """What of a step's critical path waited for something that was not recorded."""

    step: str
    rank: int
    frac: float
    """Share of the step, 0 to 1."""
    longest: str
    """The longest of these waits, in words; empty where there is none."""

    @classmethod
    def of(cls, graph: ExecutionGraph, mark: int, path: Path) -> Unexplained:
        """That of the step in row `mark` of `graph.marks`, whose critical path is `path`."""
        name, rank = graph.marks.name[mark], int(graph.marks.rank[mark])
        waits = [piece for piece in path.plain if piece[2] in NOT_EXPLAINED]
        if not waits:
            return cls(name, rank, 0.0, "")
        step_us = path.plain[-1][4] - path.plain[0][3]
        taken_us = sum(end_us - start_us for *_, start_us, end_us in waits)
        worst = Piece(*max(waits, key=lambda piece: piece[4] - piece[3]))
        missing = worst.cause == Cause.RECORDING_MISSING
        where = graph.resources[int(graph.nodes_.resource[worst.node])].partition("/")[2]
        label = graph.labels[worst.node].removeprefix("wait before ")
        length = human_us(worst.end_us - worst.start_us)
        reason = " (work that was not recorded)" if missing else ""
        longest = f"{length} before {label[:60]!r} on {where}{reason}"
        return cls(name, rank, taken_us / step_us, longest)


def unexplained_warnings(steps: Sequence[Unexplained]) -> list[str]:
    """One line per rank of which a step is unexplained to more than `MOST_UNEXPLAINED_FRAC`."""
    lines = []
    for rank in dict.fromkeys(step.rank for step in steps):
        many = [s for s in steps if s.rank == rank and s.frac > MOST_UNEXPLAINED_FRAC]
        if many:
            worst = max(many, key=lambda step: step.frac)
            others = f" (and much of {len(many) - 1} more)" if len(many) > 1 else ""
            lines.append(
                f"rank {rank}: {worst.frac:.1%} of {worst.step}{others} is unexplained: "
                f"the longest wait is {worst.longest}. A replay keeps it as measured; only "
                "--scale unexplained=FACTOR changes it"
            )
    return lines


def error_warnings(rank: int, steps: Sequence[tuple[str, float, float]]) -> list[str]:
    """One line where the replay of a step, as (name, predicted, measured), is off by more than
    `MOST_ERROR_FRAC`."""
    off = [(name, us / true_us - 1) for name, us, true_us in steps if true_us]
    off = [(name, error) for name, error in off if abs(error) > MOST_ERROR_FRAC]
    if not off:
        return []
    name, error = max(off, key=lambda each: abs(each[1]))
    others = f" (of {len(off)} such steps)" if len(off) > 1 else ""
    return [
        f"rank {rank}: the replay of {name}{others} is {error:+.1%} off what was measured, for "
        "a reason that stays unexplained: treat what-ifs of it with care"
    ]
