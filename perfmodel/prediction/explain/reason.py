"""A node of a prediction and its reasons: formula, terms, the figures of hardware that it read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
            "terms": _rounded(self.terms),
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
    """Nodes that have the name asked for; the longest of them is explained."""
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
        values = _rounded(vars(self))
        about = {name: values.pop(name) for name in ("asked", "matches", "hardware", "mode")}
        del values["start"], values["reason"]
        node = {"number": values.pop("node"), **values, "op": self.op or None}
        start = None
        if self.start is not None:
            start = _rounded(vars(self.start))
            start = {"number": start.pop("node"), **start}
        return {**about, "node": node, "waits_for": start, "reason": self.reason.to_dict()}


def _rounded(values: Mapping[str, Any]) -> dict[str, Any]:
    return {k: round(v, DECIMALS) if isinstance(v, float) else v for k, v in values.items()}
