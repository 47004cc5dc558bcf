"""The reasons of nodes, by mode: of models' pieces and profiles; of measured events under what-ifs,
moved by ratios."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.cost.durations import Chosen, explanations_of, kernels_in_use, using_kernels
from perfmodel.hardware import Cluster
from perfmodel.hardware.schema import FigureRead, figure_read, figures_used
from perfmodel.lowering.host import Profile
from perfmodel.lowering.host.measure import DESCRIPTIONS
from perfmodel.prediction.explain import Reason, Terms, reason_of_row
from perfmodel.prediction.scheduled import OVERHEAD_OF_CAUSE, HostCosts, ScheduledSteps, host_ratio
from perfmodel.prediction.transferred import TransferredDurations
from perfmodel.prediction.what_if import Scale
from perfmodel.timeline.graph.kinds import Cause, NodeKind, Scope
from perfmodel.timeline.graph.types import ExecutionGraph
from perfmodel.trace import Trace
from perfmodel.trace.columns import NONE
from perfmodel.trace.link import launching_op

HOST_SPEED = "single_thread_ratio"


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
        """Of a piece the operator that launched it."""
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
        if piece != NONE:
            return self._of_piece(piece, taken_us)
        if nodes.row[node] != NONE:
            ratio = self.host_ratio.get(rank, 1.0) if nodes.scope[node] == Scope.HOST else 1.0
            formula = "measured in the trace x host_ratio (its host's speed over the target's)"
            terms: Terms = {"measured_us": taken_us / ratio, "host_ratio": ratio}
            return Reason("measured in the trace", formula, taken_us, terms)
        if overhead_of(graph, node) and self.costs is not None:
            return profile_reason(graph, node, self.costs.profile_of(rank), self.costs)
        return _boundary(taken_us)

    def _of_piece(self, piece: int, taken_us: float) -> Reason:
        """By its model: of several launches an equal share, and what it loses to others."""
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
    return Reason("host overheads", formula, taken_us * costs.ratio, terms, host_figures(costs))


def host_figures(costs: HostCosts) -> tuple[FigureRead, ...]:
    """What was read of the profiles' hosts and of the target's."""
    hosts = [host for host in (costs.recorded_on, costs.host) if host is not None]
    return tuple(dict.fromkeys(figure_read(each, "host", HOST_SPEED) for each in hosts))


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
        terms = self._event(node) | {"measured_us": float(nodes.duration_us[node])}
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

    def _event(self, node: int) -> Terms:
        """The event behind a node, as the file has it; of a wait, none."""
        row, number = int(self.graph.nodes_.row[node]), self.graph.nodes_.rank[node]
        rank = next((each for each in self.trace.ranks if each.rank == number), None)
        if rank is None or row == NONE:
            return {"name": "a wait that no event explains"}
        return {
            "file": rank.where.rsplit("/", 1)[-1],
            "event": int(rank.file_index[row]),
            "name": rank.text(row),
            "start_us": float(rank.start_us[row]),
            "event_us": float(rank.duration_us[row]),
        }
