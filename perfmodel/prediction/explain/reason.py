"""What a duration follows from: a formula, its terms, the figures of hardware it read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from perfmodel.graph.kinds import EdgeKind
from perfmodel.hardware.reads import Read

DECIMALS = 4
Terms: TypeAlias = dict[str, float | int | str | None]
"""By name, whose end is the unit; texts say who or which."""


@dataclass(frozen=True)
class Reason:
    """One duration and what it follows from; `parts` are the durations that enter it."""

    what: str
    """`kernel model`, `measured event`, `ratio of models`, …"""
    formula: str
    """How the duration follows from the terms, in words."""
    duration_us: float
    terms: Terms = field(default_factory=dict)
    figures: tuple[Read, ...] = ()
    """What was read of the machine for this duration."""
    parts: tuple[Reason, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "what": self.what,
            "formula": self.formula,
            "duration_us": round(self.duration_us, DECIMALS),
            "terms": {name: _rounded(value) for name, value in self.terms.items()},
            "figures": [each.to_dict() for each in self.figures],
            "parts": [part.to_dict() for part in self.parts],
        }


class Grounds(Protocol):
    """How a mode of prediction came to the durations of its nodes."""

    def lag_source(self, edge: EdgeKind) -> str:
        """Where the lag of edges of a kind comes from."""
        ...

    def ops(self) -> Sequence[str]:
        """Per node, the operator behind it; empty where none is known."""
        ...

    def reason(self, node: int) -> Reason:
        """Why the node takes what it takes."""
        ...


def _rounded(value: float | int | str | None) -> float | int | str | None:
    return round(value, DECIMALS) if isinstance(value, float) else value
