"""Why nodes of a prediction take what they take, and the node that a user names. Reasons are, by
mode, of models' pieces and profiles, and of measured events under what-ifs, moved by ratios."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.units import BYTES_PER_GB, US_PER_S
from perfmodel.cost.coefficients import Coefficient
from perfmodel.cost.contract import coefficients_of, parts_of
from perfmodel.cost.durations import (
    Chosen,
    durations_of,
    explanations_of,
    kernels_in_use,
    using_kernels,
)
from perfmodel.errors import UsageError
from perfmodel.hardware import Cluster, Device, Node, cluster
from perfmodel.hardware.schema import FigureRead, figure_read, figures_used
from perfmodel.lowering.host import Profile
from perfmodel.lowering.host.measure import DESCRIPTIONS
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS
from perfmodel.prediction.scheduled import (
    HOST_SPEED,
    OVERHEAD_OF_CAUSE,
    HostCosts,
    ScheduledSteps,
    host_ratio,
)
from perfmodel.prediction.transferred import TransferredDurations
from perfmodel.prediction.what_if import Scale, node_texts
from perfmodel.timeline.critical_path import PathWalker, critical_path
from perfmodel.timeline.graph.kinds import Cause, EdgeKind, NodeKind, Scope
from perfmodel.timeline.graph.types import ExecutionGraph
from perfmodel.timeline.schedule import Timeline
from perfmodel.trace import Trace
from perfmodel.trace.columns import NONE
from perfmodel.trace.link import launching_op

DECIMALS = 4
Terms: TypeAlias = dict[str, float | int | str | None]
"""By name, whose end is the unit; texts say who or which."""


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
    texts = node_texts(graph, np.arange(len(graph)))
    names = [set(own) for own in zip(graph.labels, ops, texts, strict=True)]
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


def _boundary(taken_us: float) -> Reason:
    return Reason("boundary", "takes no time: it ends when what it waits for has", taken_us)


def overhead_of(graph: ExecutionGraph, node: int) -> str | None:
    """The overhead type of a host node, `T1` to `T5` and the like; None for others."""
    is_host = graph.nodes_.scope[node] == Scope.HOST
    return OVERHEAD_OF_CAUSE.get(Cause(int(graph.nodes_.cause[node]))) if is_host else None


@dataclass(frozen=True)
class ModelExplainer:
    """Pieces timed by models on `machine`, the host by a profile."""

    found: ScheduledSteps
    machine: Cluster
    costs: HostCosts | None
    host_ratio: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    """By rank, what the trace's host times are multiplied with."""
    kernels: Chosen = field(default_factory=kernels_in_use)
    """Models that were chosen by name."""

    def ops(self) -> Sequence[str]:
        """Of a piece the operator that launched it; of other nodes, an empty text."""
        names = [*self.found.ops, ""]
        return [names[piece] for piece in self.found.piece.tolist()]

    def decides(self, family: str) -> str:
        """What bounds the longest piece of `family`, as its model calls it; "" if there is none."""
        pieces = [at for at, name in enumerate(self.found.families) if name == family]
        if not pieces:
            return ""
        longest = pieces[int(np.argmax(self.found.durations.duration_us[pieces]))]
        one = self.found.rows.take(np.array([longest], np.int64))
        with using_kernels(self.kernels):
            return explanations_of(one, self.machine)[0].bound_by

    def reason(self, node: int) -> Reason:
        graph = self.found.timeline.graph
        nodes, rank = graph.nodes_, int(graph.nodes_.rank[node])
        taken_us = float(nodes.duration_us[node])
        piece = int(self.found.piece[node])
        if piece != NONE:  # of several launches an equal share, and what it loses to others
            about = self.found.pieces[piece]
            with using_kernels(self.kernels):
                why = reason_of_row(self.found.rows, self.machine, piece)
            terms, alone_us = dict(why.terms), why.duration_us / about.launches
            if about.guessed:
                terms["sizes"] = "guessed: the op's arguments do not tell"
            if about.launches > 1:
                terms |= {"launches": about.launches, "all_launches_us": why.duration_us}
            if abs(taken_us - alone_us) > 1e-6 * max(taken_us, 1e-3):
                terms |= {"alone_us": alone_us, "lost_us": taken_us - alone_us}
            return replace(why, duration_us=taken_us, terms=terms)
        if nodes.row[node] != NONE:
            ratio = self.host_ratio.get(rank, 1.0) if nodes.scope[node] == Scope.HOST else 1.0
            formula = "measured in the trace x host_ratio (its host's speed over the target's)"
            terms = {"measured_us": taken_us / ratio, "host_ratio": ratio}
            return Reason("measured in the trace", formula, taken_us, terms)
        if overhead_of(graph, node) and self.costs is not None:
            return profile_reason(graph, node, self.costs.profile_of(rank), self.costs)
        return _boundary(taken_us)


def profile_reason(graph: ExecutionGraph, node: int, profile: Profile, costs: HostCosts) -> Reason:
    """Why `profile` gives a host node its duration. Raises `ModelError` for an unknown type."""
    kind, op = overhead_of(graph, node), graph.labels[node]
    assert kind is not None
    thread = graph.resources[graph.nodes_.resource[node]].split("/", 1)[1]
    keys = {
        f"{kind} of {op} on {thread}": (kind, op, thread),
        f"{kind} on {thread}": (kind, None, thread),
    }
    filed_under = next((text for text, key in keys.items() if key in profile.rows), f"any {kind}")
    statistic = profile.statistic(kind, op, thread)
    taken_us = float(getattr(statistic, costs.statistic))
    terms: Terms = {
        "overhead": f"{kind}, {DESCRIPTIONS[kind]}",
        "profile": costs.name,
        "filed_under": filed_under,
        "samples": statistic.count,
        "statistic": costs.statistic,
        costs.statistic: taken_us,
        "host_ratio": costs.ratio,
    }
    formula = f"{costs.statistic} of the profile's samples x host_ratio"
    if costs.recorded_on is not None:
        formula += f" ({HOST_SPEED} of the profile's host over the target's)"
    return Reason("host overheads", formula, taken_us * costs.ratio, terms, costs.figures)


@dataclass(frozen=True)
class MeasuredExplainer:
    """A measured graph, `moved` to another machine if it was, and scheduled again with
    `duration_us` per node under `edits`."""

    trace: Trace
    graph: ExecutionGraph
    duration_us: Floats
    edits: Sequence[Scale] = ()
    overheads: str | None = None
    """The profile that took the place of the measured host costs."""
    moved: TransferredDurations | None = None

    def ops(self) -> Sequence[str]:
        """Of device work the operator that launched it."""
        names = [""] * len(self.graph)
        nodes = self.graph.nodes_
        for rank, links in zip(self.trace.ranks, self.trace.links, strict=True):
            op_of_row = np.full(len(rank), NONE, np.int64)
            op_of_row[links.device_rows] = launching_op(rank, links)
            own = (nodes.rank == rank.rank) & (nodes.row != NONE) & self.graph.on_device
            for node in np.flatnonzero(own).tolist():
                op = int(op_of_row[nodes.row[node]])
                names[node] = rank.text(op) if op != NONE else ""
        return names

    def reason(self, node: int) -> Reason:
        """The event, or what the given profile has in its place; the ratio by which it was moved;
        and the what-ifs that changed it."""
        nodes, taken_us = self.graph.nodes_, float(self.duration_us[node])
        if nodes.kind[node] == NodeKind.MARK:
            return _boundary(taken_us)
        row, number = int(nodes.row[node]), nodes.rank[node]
        rank = next((each for each in self.trace.ranks if each.rank == number), None)
        terms: Terms = {"name": "a wait that no event explains"}
        if rank is not None and row != NONE:
            terms = {
                "file": rank.where.rsplit("/", 1)[-1],
                "event": int(rank.file_index[row]),
                "name": rank.text(row),
                "start_us": float(rank.start_us[row]),
                "event_us": float(rank.duration_us[row]),
            }
        terms["measured_us"] = float(nodes.duration_us[node])
        if self.overheads is not None and overhead_of(self.graph, node):
            terms = {"profile": self.overheads}
        figures: tuple[FigureRead, ...] = ()
        if self.moved is not None:
            machines = (self.moved.source, self.moved.target)
            at = np.flatnonzero(self.graph.device_span()[1] == node)
            if nodes.scope[node] in (Scope.HOST, Scope.ALLOCATOR):
                hosts = [machine.node.host for machine in machines]
                terms |= {"ratio": host_ratio(*hosts), "ratio_of": "the hosts' speed"}
                figures = tuple(figure_read(each, "host", HOST_SPEED) for each in hosts)
            elif len(at):
                place = int(at[0])
                terms["ratio"] = float(self.moved.ratio[place])
                by_models = self.moved.by_models[place]
                terms["ratio_of"] = "models of its op" if by_models else "rooflines of its class"
                figures = tuple(f for each in machines for f in figures_used(each, ("device",)))
        applied = [edit for edit in self.edits if edit.matches(self.graph)[node]]
        terms |= {f"{edit.text} factor": edit.factor for edit in applied}
        formula = (
            "the event's duration, or the stretch of it between other events; where ranks meet, "
            "the shortest of theirs; x ratio of target over source x factors of what-ifs; what "
            "codecs add, and what it loses to kernels and collectives beside it"
        )
        return Reason("measured event", formula, taken_us, terms, figures)


Explainer: TypeAlias = ModelExplainer | MeasuredExplainer
"""How a mode of prediction came to the durations of its nodes."""
