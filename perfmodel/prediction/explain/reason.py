"""A node of a prediction and its reasons: formula, terms, the figures of hardware that it read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from perfmodel.cost.coefficients import Coefficient
from perfmodel.graph.kinds import EdgeKind
from perfmodel.hardware.reads import FigureRead

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
    figures: tuple[FigureRead, ...] = ()
    """Of the parts of the machine that this duration uses."""
    parts: tuple[Reason, ...] = ()
    coefficients: tuple[Coefficient, ...] = ()
    """The fitted and assumed figures of the cost models that answer for it."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "what": self.what,
            "formula": self.formula,
            "duration_us": round(self.duration_us, DECIMALS),
            "terms": {name: _rounded(value) for name, value in self.terms.items()},
            "figures": [each.to_dict() for each in self.figures],
            "coefficients": [each.to_dict() for each in self.coefficients],
            "parts": [part.to_dict() for part in self.parts],
        }


class Explainer(Protocol):
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


@dataclass(frozen=True)
class Start:
    """What decided when a node could start."""

    node: int
    label: str
    edge: str
    lag_us: float
    lag_source: str


@dataclass(frozen=True)
class Explained:
    """A node and its reasons; times are after the start of its step."""

    asked: str
    matches: int
    """Nodes that have the name asked for; the longest of them is told."""
    hardware: str
    mode: str
    node: int
    label: str
    op: str
    kind: str
    cause: str
    rank: int
    resource: str
    step: str | None
    start_us: float
    duration_us: float
    slack_us: float | None
    """How much later it could end without its step ending later; None: no step waits for it."""
    on_critical_path: bool
    start: Start | None
    reason: Reason

    def to_dict(self) -> dict[str, Any]:
        """One of the results of `docs/schemas/explanation.json`."""
        return {
            "asked": self.asked,
            "matches": self.matches,
            "hardware": self.hardware,
            "mode": self.mode,
            "node": {
                "number": self.node,
                "label": self.label,
                "op": self.op or None,
                "kind": self.kind,
                "cause": self.cause,
                "rank": self.rank,
                "resource": self.resource,
                "step": self.step,
                "start_us": round(self.start_us, DECIMALS),
                "duration_us": round(self.duration_us, DECIMALS),
                "slack_us": None if self.slack_us is None else round(self.slack_us, DECIMALS),
                "on_critical_path": self.on_critical_path,
            },
            "waits_for": None
            if self.start is None
            else {
                "number": self.start.node,
                "label": self.start.label,
                "edge": self.start.edge,
                "lag_us": round(self.start.lag_us, DECIMALS),
                "lag_source": self.start.lag_source,
            },
            "reason": self.reason.to_dict(),
        }
