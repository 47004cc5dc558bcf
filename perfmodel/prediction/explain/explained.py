"""One node of a prediction: where it stands in its step, and why it takes what it takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from perfmodel.attribution.path import critical_path
from perfmodel.errors import UsageError
from perfmodel.graph.kinds import Cause, EdgeKind, NodeKind
from perfmodel.prediction.explain.find import find_node, marks_of
from perfmodel.prediction.explain.reason import DECIMALS, Grounds, Reason
from perfmodel.timeline.binding import bind
from perfmodel.timeline.schedule import Timeline
from perfmodel.trace.columns import NONE


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


def explain(
    timeline: Timeline, grounds: Grounds | None, hardware: str, mode: str, asked: str
) -> Explained:
    """The node of a predicted timeline that `asked` names (`find_node`), and why it takes what it
    takes. Raises `UsageError` where there is no such node, or nothing is kept of how it was timed.
    """
    if grounds is None:
        raise UsageError(f"{hardware}: nothing is kept of how its nodes were timed")
    graph, ops = timeline.graph, grounds.ops()
    node, matches = find_node(timeline, ops, asked)
    mark = int(marks_of(timeline)[node])
    begun = 0.0 if mark < 0 else float(timeline.end_us[graph.marks.start[mark]])
    path = () if mark < 0 else critical_path(timeline, mark)
    slack = float(timeline.slack_us[node])
    return Explained(
        asked=asked,
        matches=matches,
        hardware=hardware,
        mode=mode,
        node=node,
        label=graph.labels[node],
        op=ops[node],
        kind=NodeKind(int(graph.nodes_.kind[node])).name.lower(),
        cause=Cause(int(graph.nodes_.cause[node])).name.lower(),
        rank=int(graph.nodes_.rank[node]),
        resource=graph.resources[int(graph.nodes_.resource[node])],
        step=None if mark < 0 else graph.marks.name[mark],
        start_us=float(timeline.start_us[node]) - begun,
        duration_us=float(timeline.end_us[node] - timeline.start_us[node]),
        slack_us=max(slack, 0.0) if np.isfinite(slack) else None,
        on_critical_path=any(piece.node == node and piece.edge == NONE for piece in path),
        start=_start(timeline, grounds, node),
        reason=grounds.reason(node),
    )


def _start(timeline: Timeline, grounds: Grounds, node: int) -> Start | None:
    """The edge that decided; None where nothing did."""
    found = bind(timeline)
    before = int(found.node[node])
    if before == NONE:
        return None
    edge = EdgeKind(int(found.kind[node]))
    label = timeline.graph.labels[before]
    lag_us = float(found.lag_us[node])
    return Start(before, label, edge.name.lower(), lag_us, grounds.lag_source(edge))
