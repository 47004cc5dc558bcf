"""Why nodes of a prediction take what they take, and the node that a user names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Protocol, TypeAlias

import numpy as np

from perfmodel.base.units import BYTES_PER_GB, US_PER_S
from perfmodel.cost.coefficients import Coefficient
from perfmodel.cost.contract import coefficients_of, parts_of
from perfmodel.cost.durations import durations_of, explanations_of
from perfmodel.errors import UsageError
from perfmodel.hardware import Cluster, Device, Node, cluster
from perfmodel.hardware.schema import FigureRead, figures_used
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS
from perfmodel.prediction.what_if import node_text
from perfmodel.timeline.critical_path import PathWalker, critical_path
from perfmodel.timeline.graph.kinds import Cause, EdgeKind, NodeKind
from perfmodel.timeline.graph.types import ExecutionGraph
from perfmodel.timeline.schedule import Timeline
from perfmodel.trace.columns import NONE

DECIMALS = 4
Terms: TypeAlias = dict[str, float | int | str | None]
"""By name, whose end is the unit; texts say who or which."""


class Explainer(Protocol):
    """How a mode of prediction came to the durations of its nodes."""

    def ops(self) -> Sequence[str]:
        """The operator of each node; empty where it has none."""
        ...

    def reason(self, node: int) -> Reason: ...


@dataclass(frozen=True)
class Reason:
    """One duration and what it follows from."""

    what: str
    """`kernel model`, `measured event`, `ratio of models`, …"""
    formula: str
    """How the duration follows from the terms, in words."""
    duration_us: float
    terms: Terms = field(default_factory=dict)
    figures: tuple[FigureRead, ...] = ()
    """Of the parts of the machine that this duration uses."""
    coefficients: tuple[Coefficient, ...] = ()
    """The fitted and assumed figures of the cost models that answer for it."""

    def to_dict(self) -> dict[str, Any]:
        lists = {
            name: [each.to_dict() for each in getattr(self, name)]
            for name in ("figures", "coefficients")
        }
        return _rounded(vars(self)) | {"terms": _rounded(self.terms)} | lists


@dataclass(frozen=True)
class Explained:
    """A node and its reasons."""

    asked: str
    matches: int
    """Nodes that have the name asked for; the longest of them is explained."""
    hardware: str
    mode: str
    node: dict[str, Any]
    """`number label op kind cause rank resource step`, `start_us` after the start of its step,
    `duration_us`, `slack_us` (how much later it could end without its step ending later; None: no
    step waits for it) and `on_critical_path`."""
    waits_for: dict[str, Any] | None
    """What decided when it could start: `number label edge lag_us`."""
    reason: Reason

    @property
    def duration_us(self) -> float:
        return float(self.node["duration_us"])

    def to_dict(self) -> dict[str, Any]:
        """One of the results of `docs/schemas/explanation.json`."""
        waits_for = self.waits_for and _rounded(self.waits_for)
        written = {"node": _rounded(self.node), "waits_for": waits_for}
        return vars(self) | written | {"reason": self.reason.to_dict()}


def _rounded(values: Mapping[str, Any]) -> dict[str, Any]:
    return {k: round(v, DECIMALS) if isinstance(v, float) else v for k, v in values.items()}


MAX_SUGGESTIONS = 4
"""Names that are offered where none fits."""
SHOWN = 60
"""Characters of a name in a message."""


def _matching(graph: ExecutionGraph, ops: Sequence[str], text: str) -> np.ndarray:
    """The nodes that `text` names: a number; else an operator, a kernel or a label, whole; else
    without its namespace (`mm`); else a part of it, whatever the case. Raises `UsageError`."""
    if text.strip().isdecimal():
        if int(text) >= len(graph):
            raise UsageError(f"--explain {text}: nodes are numbered from 0 to {len(graph) - 1}")
        return np.array([int(text)])
    names = [{graph.labels[node], ops[node], node_text(graph, node)} for node in range(len(graph))]
    known = sorted(set().union(*names) - {""})
    fitting = {text} & {*known}
    fitting = fitting or {name for name in known if name.rpartition("::")[2] == text}
    fitting = fitting or {name for name in known if text and text.lower() in name.lower()}
    if not fitting:
        near = get_close_matches(text, known, n=MAX_SUGGESTIONS, cutoff=0.3) or known
        nearest = ", ".join(name[:SHOWN] for name in near[:MAX_SUGGESTIONS])
        raise UsageError(f"--explain {text[:SHOWN]!r}: no such node; nearest: {nearest}")
    return np.flatnonzero([not own.isdisjoint(fitting) for own in names])


def explain(
    timeline: Timeline, explainer: Explainer | None, hardware: str, mode: str, asked: str
) -> Explained:
    """Why the node of a predicted timeline that `asked` names takes what it takes: of several the
    longest, those within a step before others. Raises `UsageError` where there is no such node, or
    nothing is kept of how it was timed."""
    if explainer is None:
        raise UsageError(f"{hardware}: nothing is kept of how its nodes were timed")
    graph, ops, marks = timeline.graph, explainer.ops(), timeline.graph.marks
    nodes, taken_us = graph.nodes_, timeline.end_us - timeline.start_us
    rows = _matching(graph, ops, asked)
    begun, over = timeline.end_us[marks.start], timeline.end_us[marks.end]
    inside = (marks.rank == nodes.rank[rows, None]) & (timeline.start_us[rows, None] >= begun)
    inside &= timeline.start_us[rows, None] < over
    chosen = np.flatnonzero(inside.any(axis=1))
    chosen = chosen if len(chosen) else np.arange(len(rows))
    at = int(chosen[taken_us[rows[chosen]].argmax()])
    node, mark = int(rows[at]), int(inside[at].argmax()) if inside[at].any() else NONE
    slack = float(timeline.slack_us[node])
    walker, waits_for = PathWalker(timeline), None
    if (before := walker.before[node]) != NONE:
        edge = EdgeKind(walker.edge[node])
        waits_for = {
            "number": before,
            "label": graph.labels[before],
            "edge": edge.name.lower(),
            "lag_us": walker.lag[node],
        }
    path = () if mark == NONE else critical_path(timeline, mark, walker)
    about = {
        "number": node,
        "label": graph.labels[node],
        "kind": NodeKind(int(nodes.kind[node])).name.lower(),
        "cause": Cause(int(nodes.cause[node])).name.lower(),
        "rank": int(nodes.rank[node]),
        "resource": graph.resources[int(nodes.resource[node])],
        "step": None if mark == NONE else marks.name[mark],
        "start_us": float(timeline.start_us[node]) - (0.0 if mark == NONE else float(begun[mark])),
        "duration_us": float(taken_us[node]),
        "slack_us": max(slack, 0.0) if np.isfinite(slack) else None,
        "on_critical_path": any(it.node == node and it.edge == NONE for it in path),
        "op": ops[node] or None,
    }
    found = (about, waits_for, explainer.reason(node))
    return Explained(asked, len(rows), hardware, mode, *found)


def reason_of_row(rows: Rows, hardware: Device | Node | Cluster, at: int = 0) -> Reason:
    """Why row `at` of `rows` takes what it takes on `hardware`, and which figures that uses.

    Raises `ModelError`.
    """
    one, machine = rows.take(np.array([at], np.int64)), cluster(hardware)
    family = OPS[one.op[0]].family
    durations, (why,) = durations_of(one, machine), explanations_of(one, machine)
    figures = figures_used(machine, parts_of(family))
    coefficients = coefficients_of(family, machine.node.device.target)
    duration_us = float(durations.duration_us[0])
    moved_bytes = why.read_bytes + why.written_bytes
    terms: Terms = {
        "op": f"{one.op[0]} {one.dtype[0]} {one.direction[0]}",
        "dims": one.dims_text(),
        "model": durations.model[0],
        "source": durations.source[0],
        "bound_by": why.bound_by,
        "low_us": float(durations.low_us[0]),
        "high_us": float(durations.high_us[0]),
        "flop": why.flop,
        "read_bytes": why.read_bytes,
        "written_bytes": why.written_bytes,
        "moved_gb_per_s": moved_bytes / max(duration_us, 1e-9) * US_PER_S / BYTES_PER_GB,
        "utilisation_frac": why.utilisation_frac,
    }
    terms |= why.terms
    return Reason("model", why.formula, duration_us, terms, figures, coefficients=coefficients)
