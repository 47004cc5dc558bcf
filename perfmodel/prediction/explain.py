"""Why nodes of a prediction take what they take: the node that a user names, and its reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Protocol, TypeAlias

import numpy as np

from perfmodel.base.arrays import Ints
from perfmodel.cost.coefficients import Coefficient
from perfmodel.errors import UsageError
from perfmodel.hardware.reads import FigureRead
from perfmodel.prediction.what_if import node_text
from perfmodel.timeline.critical_path import critical_path
from perfmodel.timeline.graph.kinds import Cause, EdgeKind, NodeKind
from perfmodel.timeline.schedule import Timeline, deciding_edges
from perfmodel.trace.columns import NONE

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


MAX_SUGGESTIONS = 4
"""Names that are offered where none fits."""
SHOWN = 60
"""Characters of a name in a message."""


def find_node(timeline: Timeline, ops: Sequence[str], mark_of: Ints, text: str) -> tuple[int, int]:
    """(node, how many nodes `text` matches): a number, else a name, of which the longest counts.

    A name is an operator, a kernel or a label: whole; else without its namespace (`mm`); else a
    part of it, whatever the case. Nodes that start within a step (`mark_of`, else -1) come before
    others. Raises `UsageError` that names the nearest.
    """
    graph = timeline.graph
    if text.strip().isdecimal():
        number = int(text)
        if number >= len(graph):
            raise UsageError(f"--explain {text}: nodes are numbered from 0 to {len(graph) - 1}")
        return number, 1
    names = [{graph.labels[node], ops[node], node_text(graph, node)} for node in range(len(graph))]
    known = sorted(set().union(*names) - {""})
    fitting = {text} & {*known}
    fitting = fitting or {name for name in known if name.rpartition("::")[2] == text}
    fitting = fitting or {name for name in known if text and text.lower() in name.lower()}
    if not fitting:
        near = get_close_matches(text, known, n=MAX_SUGGESTIONS, cutoff=0.3) or known
        nearest = ", ".join(name[:SHOWN] for name in near[:MAX_SUGGESTIONS])
        raise UsageError(f"--explain {text[:SHOWN]!r}: no such node; nearest: {nearest}")
    rows = np.flatnonzero([not own.isdisjoint(fitting) for own in names])
    inside = rows[mark_of[rows] >= 0]
    rows = inside if len(inside) else rows
    taken = (timeline.end_us - timeline.start_us)[rows]
    return int(rows[int(np.argmax(taken))]), len(rows)


def _marks_of(timeline: Timeline) -> Ints:
    """Per node the row of the graph's marks whose step it starts in, or -1."""
    graph, marks = timeline.graph, timeline.graph.marks
    begun, over = timeline.end_us[marks.start], timeline.end_us[marks.end]
    mark_of = np.full(len(graph), -1, np.int64)
    for mark, rank in enumerate(marks.rank.tolist()):
        own = graph.nodes_.rank == rank
        own &= (timeline.start_us >= begun[mark]) & (timeline.start_us < over[mark])
        mark_of[own & (mark_of < 0)] = mark
    return mark_of


def explain(
    timeline: Timeline, explainer: Explainer | None, hardware: str, mode: str, asked: str
) -> Explained:
    """The node of a predicted timeline that `asked` names (`find_node`), and why it takes what it
    takes. Raises `UsageError` where there is no such node, or nothing is kept of how it was timed.
    """
    if explainer is None:
        raise UsageError(f"{hardware}: nothing is kept of how its nodes were timed")
    graph, ops = timeline.graph, explainer.ops()
    mark_of = _marks_of(timeline)
    node, matches = find_node(timeline, ops, mark_of, asked)
    mark = int(mark_of[node])
    begun = 0.0 if mark < 0 else float(timeline.end_us[graph.marks.start[mark]])
    path = () if mark < 0 else critical_path(timeline, mark)
    slack = float(timeline.slack_us[node])
    deciding, start = deciding_edges(timeline), None
    before = int(deciding.node[node])
    if before != NONE:
        edge = EdgeKind(int(deciding.kind[node]))
        start = Start(
            before,
            graph.labels[before],
            edge.name.lower(),
            float(deciding.lag_us[node]),
            explainer.lag_source(edge),
        )
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
        start=start,
        reason=explainer.reason(node),
    )
